//! When recorded frames are due.

/// How fast to go through a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// This many times as fast as it was recorded.
    Times(f64),
    /// Its times do not count: as fast as the frames go, or as the pacer says.
    Unpaced,
}

/// A recorded time that lies back by more than this begins a timing of its own: another recording, or a clock that
/// was set. Less is disorder: such frames are due at once.
const JUMP_BACK: u64 = 10_000_000;

/// Turns recorded times into times since the beginning of the replay.
#[derive(Clone, Debug)]
pub struct Timing {
    speed: f64,
    /// The latest recorded time, and how long the recording went on until then.
    latest: Option<u64>,
    elapsed: u64,
    frames: u64,
    backwards: u64,
}

impl Timing {
    pub fn new(speed: f64) -> Self {
        Self {
            speed,
            latest: None,
            elapsed: 0,
            frames: 0,
            backwards: 0,
        }
    }

    /// When the frame that was recorded at that time is due, in nanoseconds since the beginning. To be asked once for
    /// each frame.
    pub fn due(&mut self, time: u64) -> u64 {
        match self.latest {
            Some(latest) if time >= latest => self.elapsed += time - latest,
            Some(latest) => {
                self.backwards += 1;
                if latest - time <= JUMP_BACK {
                    return self.replay_time();
                }
            }
            None => {}
        }
        self.latest = Some(time);
        self.frames += 1;
        self.replay_time()
    }

    /// The next frame is the first of another file, which is sent right after this one, whenever it was recorded.
    pub fn next_file(&mut self) {
        self.latest = None;
    }

    /// The recording begins anew. The gap in between is the mean one, which keeps the rate.
    pub fn next_round(&mut self) {
        self.latest = None;
        self.elapsed += self
            .elapsed
            .checked_div(self.frames - self.frames.min(1))
            .unwrap_or(0);
    }

    /// Frames with a time before that of the frame in front of them.
    pub fn backwards(&self) -> u64 {
        self.backwards
    }

    fn replay_time(&self) -> u64 {
        (self.elapsed as f64 / self.speed) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_700_000_000 * SECOND;

    fn dues(speed: f64, times: &[u64]) -> Vec<u64> {
        let mut timing = Timing::new(speed);
        times.iter().map(|time| timing.due(START + time)).collect()
    }

    #[test]
    fn gaps_are_those_of_the_recording() {
        assert_eq!(dues(1.0, &[0, 1, 1, SECOND]), [0, 1, 1, SECOND]);
        assert_eq!(dues(2.0, &[0, 10, 100]), [0, 5, 50]);
        assert_eq!(dues(0.5, &[0, 10, 100]), [0, 20, 200]);
    }

    #[test]
    fn a_little_disorder_does_not_stretch_the_time() {
        assert_eq!(dues(1.0, &[0, 100, 50, 110]), [0, 100, 100, 110]);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_stop_it() {
        let hour = 3600 * SECOND;
        let mut timing = Timing::new(1.0);
        let dues = [hour, hour + 5, 7, 9].map(|time| timing.due(START + time));
        assert_eq!(dues, [0, 5, 5, 7]);
        assert_eq!(timing.backwards(), 1);
    }

    #[test]
    fn files_follow_each_other_and_rounds_keep_the_rate() {
        let mut timing = Timing::new(1.0);
        assert_eq!(
            [0, 10, 20].map(|time| timing.due(START + time)),
            [0, 10, 20]
        );
        timing.next_file();
        assert_eq!([3, 13].map(|time| timing.due(time)), [20, 30]);
        timing.next_round();
        // Thirty over four gaps.
        assert_eq!(timing.due(START), 37);
        let mut single = Timing::new(1.0);
        single.due(START);
        single.next_round();
        assert_eq!(single.due(START), 0);
    }
}
