//! The page of redirects: the counts of the kernel's XDP tracepoints for the whole machine, by error, device and CPU.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::Serialize;
use trawl_bpf::redirect_events::{Count, EventSource, RedirectEvent, RedirectEvents};
use trawl_packet::pcapng::Verdict;
use trawl_packet::verdict;
use trawl_sys::{Result, errno};

/// The counts of one tracepoint for one source in an interval.
#[derive(Clone, Debug, Serialize)]
pub struct RedirectRates {
    pub event: Event,
    /// The device that received the packets, and the inode number of its namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<u32>,
    /// The device that the packets were passed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_interface: Option<String>,
    /// The CPU that the packets were passed to, or that processed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map_id: Option<u32>,
    /// Name of the error, as in errno(3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    #[serde(flatten)]
    pub rates: EventRates,
    /// Verdicts of the cpumap's program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<CpumapVerdicts>,
    /// Number of bulks of a devmap or an enqueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulks: Option<u64>,
    /// Number of times that a cpumap's thread slept on an empty queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeps: Option<u64>,
    pub cpus: Vec<CpuRates>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    RedirectError,
    Exception,
    Devmap,
    CpumapEnqueue,
    CpumapKthread,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct EventRates {
    /// Packets in the interval, and the dropped ones among them.
    pub packets: u64,
    pub drops: u64,
    pub packets_per_second: f64,
    pub drops_per_second: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpumapVerdicts {
    pub pass: u64,
    pub drop: u64,
    pub redirect: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuRates {
    pub cpu: usize,
    #[serde(flatten)]
    pub rates: EventRates,
}

/// The tracepoints, with their counts at the last frame.
#[derive(Debug)]
pub struct Redirects {
    events: RedirectEvents,
    before: HashMap<EventSource, Vec<Count>>,
}

impl Redirects {
    pub fn watch() -> Result<Self> {
        Ok(Self { events: RedirectEvents::watch()?, before: HashMap::new() })
    }

    /// Returns the changes since the last frame. Sources with earlier changes stay, with rates of zero.
    pub fn update(&mut self, seconds: f64) -> Vec<RedirectRates> {
        // Counts that cannot be read now may be readable in the next frame.
        let now = self.events.read().unwrap_or_default();
        let rows = now.iter().map(|(source, counts)| {
            let before = self.before.get(source).map_or(&[][..], Vec::as_slice);
            rates(source, counts, before, seconds)
        });
        let rows = rows.collect();
        self.before.extend(now);
        rows
    }
}

fn rates(source: &EventSource, now: &[Count], before: &[Count], seconds: f64) -> RedirectRates {
    let old = |cpu: usize, field: fn(&Count) -> u64| before.get(cpu).map_or(0, field);
    let sum = |field: fn(&Count) -> u64| -> u64 {
        let each = now.iter().enumerate();
        each.map(|(cpu, count)| field(count).saturating_sub(old(cpu, field))).sum()
    };
    let rates = |packets: u64, drops: u64| EventRates {
        packets,
        drops,
        packets_per_second: packets as f64 / seconds,
        drops_per_second: drops as f64 / seconds,
    };
    let cpus = now.iter().enumerate().map(|(cpu, count)| CpuRates {
        cpu,
        rates: rates(
            count.packets.saturating_sub(old(cpu, |count| count.packets)),
            count.drops.saturating_sub(old(cpu, |count| count.drops)),
        ),
    });
    let (event, detail) = match source.kind {
        RedirectEvent::RedirectError(error) => (Event::RedirectError, error),
        RedirectEvent::Exception(action) => (Event::Exception, action),
        RedirectEvent::Devmap(error) => (Event::Devmap, error),
        RedirectEvent::CpumapEnqueue(cpu) => (Event::CpumapEnqueue, cpu),
        RedirectEvent::CpumapKthread(cpu) => (Event::CpumapKthread, cpu),
    };
    let on_cpu = matches!(event, Event::CpumapEnqueue | Event::CpumapKthread);
    let has_error = matches!(event, Event::RedirectError | Event::Devmap) && detail != 0;
    let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    RedirectRates {
        event,
        interface: named(&source.from),
        netns: (source.netns != 0).then_some(source.netns),
        target_interface: named(&source.to),
        target_cpu: on_cpu.then_some(detail),
        map_id: (on_cpu || source.map != 0).then_some(source.map),
        error: has_error.then(|| errno::name(detail)),
        verdict: (event == Event::Exception).then(|| verdict::text(Verdict::Xdp(u64::from(detail)))),
        rates: rates(sum(|count| count.packets), sum(|count| count.drops)),
        verdicts: (event == Event::CpumapKthread).then(|| CpumapVerdicts {
            pass: sum(|count| count.pass),
            drop: sum(|count| count.drop),
            redirect: sum(|count| count.redirect),
        }),
        bulks: matches!(event, Event::Devmap | Event::CpumapEnqueue).then(|| sum(|count| count.times)),
        sleeps: (event == Event::CpumapKthread).then(|| sum(|count| count.times)),
        cpus: cpus.filter(|cpu| cpu.rates.packets + cpu.rates.drops > 0).collect(),
    }
}

impl RedirectRates {
    /// Describes the source.
    pub fn label(&self) -> String {
        let interface = self.interface.as_deref().unwrap_or("?");
        let map = self.map_id.unwrap_or_default();
        let cpu = self.target_cpu.unwrap_or_default();
        match (&self.event, &self.error) {
            (Event::RedirectError, error) => {
                format!("{interface}: {}", error.as_deref().unwrap_or("no error"))
            }
            (Event::Exception, _) => {
                format!("{interface}: {}", self.verdict.as_deref().unwrap_or("?"))
            }
            (Event::Devmap, error) => {
                let target = self.target_interface.as_deref().unwrap_or("?");
                let error = error.as_ref().map_or(String::new(), |error| format!(" {error}"));
                format!("{interface} > {target}{error}")
            }
            (Event::CpumapEnqueue | Event::CpumapKthread, _) => format!("map {map}, CPU {cpu}"),
        }
    }
}

/// Returns the page: a line for each source, and one for each CPU below it.
pub fn text(rows: &[RedirectRates], filter: &str) -> String {
    const SECTIONS: [(Event, &str); 5] = [
        (Event::RedirectError, "redirect errors"),
        (Event::Exception, "exceptions"),
        (Event::Devmap, "devmap"),
        (Event::CpumapEnqueue, "cpumap enqueue"),
        (Event::CpumapKthread, "cpumap kthread"),
    ];
    let mut out = String::from("XDP redirects, whole machine                     packets/s     dropped/s\n");
    for (event, title) in SECTIONS {
        let _ = writeln!(out, "\n{title}");
        let mut rows = rows.iter().filter(|row| row.event == event && row.label().contains(filter)).peekable();
        if rows.peek().is_none() {
            out.push_str("  none\n");
        }
        for row in rows {
            let mut line = |name: &str, rates: &EventRates| {
                let _ = writeln!(out, "{name:<44}{:>14.0}{:>14.0}", rates.packets_per_second, rates.drops_per_second);
            };
            line(&format!("  {}", row.label()), &row.rates);
            for cpu in &row.cpus {
                line(&format!("    on CPU {}", cpu.cpu), &cpu.rates);
            }
            if let Some(bulks) = row.bulks.filter(|&bulks| bulks > 0) {
                // Drops by a device are not among the packets that were passed to it.
                let packets = match event {
                    Event::Devmap => row.rates.packets + row.rates.drops,
                    _ => row.rates.packets,
                };
                let mean = packets as f64 / bulks as f64;
                let _ = writeln!(out, "    bulks: {bulks}, {mean:.1} packets each");
            }
            if let Some(sleeps) = row.sleeps {
                let _ = writeln!(out, "    its thread slept {sleeps} times");
            }
            if let Some(verdicts) = &row.verdicts {
                let _ = writeln!(
                    out,
                    "    verdicts of its program: pass {}, drop {}, redirect {}",
                    verdicts.pass, verdicts.drop, verdicts.redirect
                );
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_counts_events_since_the_previous_one() {
        let source = EventSource {
            kind: RedirectEvent::RedirectError(100),
            map: 7,
            netns: 1,
            from: "eth0".to_owned(),
            to: String::new(),
        };
        let count = |packets| Count { packets, drops: packets, pass: 0, drop: 0, redirect: 0, times: 0 };
        let row = rates(&source, &[count(30), count(4)], &[count(10), count(4)], 2.0);
        assert_eq!(row.error.as_deref(), Some("ENETDOWN"));
        assert_eq!((row.rates.packets, row.rates.packets_per_second), (20, 10.0));
        assert_eq!(row.cpus.len(), 1);
        let page = text(&[row], "eth");
        assert!(page.contains("eth0: ENETDOWN") && page.contains("on CPU 0"), "{page}");
        assert!(page.contains("exceptions\n  none"), "{page}");
    }
}
