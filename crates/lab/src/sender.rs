//! The sender for tests and small experiments: given frames, out of one interface, counted exactly.

use std::str::FromStr;
use std::time::{Duration, Instant};

use trawl_kernel::netns::{Namespace, run_maybe_in};
use trawl_kernel::send::{LiveSender, PacketSender, Sender, Variation, pin_to_cpu};
use trawl_kernel::{Error, Result};

/// A paced sender looks at the clock this often at most.
const TICK: Duration = Duration::from_micros(500);
/// So long without one frame taken, and the receiver is taken to be stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// How frames are handed to the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// XDP frames made in the kernel, straight to the peer's driver: the fastest.
    Live,
    /// The same, and every so many-th frame differs.
    LiveVaried(Variation),
    /// A raw packet socket: through the stack's transmit path, any length.
    Packet,
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "live" => Ok(Self::Live),
            "packet" => Ok(Self::Packet),
            _ => Err(Error::usage(
                format!("engine {text:?}"),
                "there are live and packet",
            )),
        }
    }
}

/// What to send, and how.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    pub namespace: Option<&'a Namespace>,
    pub interface: &'a str,
    /// Sent in turn, from the first again after the last.
    pub frames: &'a [Vec<u8>],
    /// How many in all.
    pub count: u64,
    pub engine: Engine,
    /// Frames a second; `None`: as fast as they go.
    pub rate: Option<u64>,
    /// The CPU to stay on. With a veth it also chooses the receiving queue: CPU modulo queues.
    pub cpu: Option<usize>,
}

/// What was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Frames that the interface took, exactly as many as were asked for.
    pub packets: u64,
    /// Frames that it refused at first, for want of room at the other end, and that were sent again.
    pub again: u64,
    pub took: Duration,
}

impl Sent {
    pub fn per_second(&self) -> f64 {
        self.packets as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }
}

/// Sends on a thread of its own, and returns when the last frame was taken.
pub fn send(job: &Job<'_>) -> Result<Sent> {
    if job.frames.is_empty() {
        return Err(Error::usage("cannot send", "there is no frame"));
    }
    if job.rate == Some(0) {
        return Err(Error::usage("cannot send", "a rate of 0 never ends"));
    }
    // Entering a namespace already takes a thread that is thrown away; here one is wanted in any
    // case, so that the caller keeps its CPUs.
    let work = || {
        if let Some(cpu) = job.cpu {
            pin_to_cpu(cpu)?;
        }
        let mut sender: Box<dyn Sender> = match job.engine {
            Engine::Live => Box::new(LiveSender::open(job.interface)?),
            Engine::LiveVaried(variation) => {
                Box::new(LiveSender::open_varied(job.interface, variation)?)
            }
            Engine::Packet => Box::new(PacketSender::open(job.interface)?),
        };
        drive(sender.as_mut(), job)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| run_maybe_in(job.namespace, work));
        match thread.join() {
            Ok(result) => result?,
            Err(panicked) => std::panic::resume_unwind(panicked),
        }
    })
}

fn drive(sender: &mut dyn Sender, job: &Job<'_>) -> Result<Sent> {
    let start = Instant::now();
    let mut sent = Sent {
        packets: 0,
        again: 0,
        took: Duration::ZERO,
    };
    let mut last_progress = start;
    while sent.packets < job.count {
        let due = due(job, start.elapsed()).min(job.count);
        if due == sent.packets {
            std::thread::sleep(TICK);
            continue;
        }
        let turn = usize::try_from(sent.packets % job.frames.len() as u64).unwrap_or(0);
        let most = if job.frames.len() == 1 {
            sender.largest_burst()
        } else {
            1
        };
        let burst = sender.burst(&job.frames[turn], (due - sent.packets).min(most))?;
        sent.packets += burst.sent;
        sent.again += burst.refused;
        let now = Instant::now();
        if burst.sent > 0 {
            last_progress = now;
        } else if now - last_progress > PATIENCE {
            return Err(Error::failed(
                format!(
                    "stopped sending out of {} after {} frames",
                    job.interface, sent.packets
                ),
                format!("none was taken for {} seconds", PATIENCE.as_secs()),
            ));
        }
    }
    sent.took = start.elapsed();
    Ok(sent)
}

/// How many frames should have been sent after that time.
fn due(job: &Job<'_>, elapsed: Duration) -> u64 {
    match job.rate {
        None => job.count,
        // The first frame is due at once.
        Some(rate) => {
            1 + u64::try_from(elapsed.as_nanos() * u128::from(rate) / 1_000_000_000)
                .unwrap_or(u64::MAX - 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_kernel::send::Burst;

    /// Takes only every other frame of a burst.
    #[derive(Default)]
    struct Half {
        frames: Vec<Vec<u8>>,
    }

    impl Sender for Half {
        fn burst(&mut self, frame: &[u8], count: u64) -> Result<Burst> {
            let sent = count.div_ceil(2);
            self.frames.extend((0..sent).map(|_| frame.to_vec()));
            Ok(Burst {
                sent,
                refused: count - sent,
            })
        }

        fn largest_burst(&self) -> u64 {
            16
        }
    }

    fn job(frames: &[Vec<u8>], count: u64, rate: Option<u64>) -> Job<'_> {
        Job {
            namespace: None,
            interface: "x",
            frames,
            count,
            engine: Engine::Live,
            rate,
            cpu: None,
        }
    }

    #[test]
    fn refused_frames_are_sent_again_until_the_count_is_right() {
        let frames = [vec![1; 60]];
        let mut half = Half::default();
        let sent = drive(&mut half, &job(&frames, 100, None)).unwrap();
        assert_eq!((sent.packets, half.frames.len()), (100, 100));
        assert!(sent.again > 0);
    }

    #[test]
    fn several_frames_go_in_turn() {
        let frames = [vec![1], vec![2], vec![3]];
        let mut half = Half::default();
        drive(&mut half, &job(&frames, 7, None)).unwrap();
        let order: Vec<u8> = half.frames.iter().map(|f| f[0]).collect();
        assert_eq!(order, [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn a_rate_is_kept() {
        let frames = [vec![1; 60]];
        let job = job(&frames, 100, Some(2000));
        assert_eq!(due(&job, Duration::ZERO), 1);
        assert_eq!(due(&job, Duration::from_millis(10)), 21);
        let sent = drive(&mut Half::default(), &job).unwrap();
        assert!(sent.took >= Duration::from_micros(49_500), "{sent:?}");
    }

    #[test]
    fn nothing_to_send_is_refused() {
        assert!(send(&job(&[], 1, None)).is_err());
        assert!(send(&job(&[vec![0; 60]], 1, Some(0))).is_err());
        assert!("fast".parse::<Engine>().is_err());
    }
}
