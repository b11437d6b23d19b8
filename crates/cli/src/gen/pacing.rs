//! How fast, how many and how long: the arguments that all generators have.

use std::time::Duration;

use trawl_gen::pace::{Rate, WIRE_OVERHEAD};
use trawl_sys::{Error, Result};

use crate::units;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Pacing")]
pub struct Pacing {
    /// Frames a second, for example 1.5Mpps
    #[arg(long, value_name = "PPS", value_parser = units::frame_rate, allow_hyphen_values = true)]
    rate: Option<f64>,
    /// Bits a second, for example 500Mbit: those of the frames themselves, from the Ethernet header to the end of the payload
    #[arg(long, value_name = "BITS", value_parser = units::bandwidth, conflicts_with = "rate", allow_hyphen_values = true)]
    bandwidth: Option<f64>,
    /// Count in --bandwidth what a frame takes on the wire beside its own bytes: checksum, preamble and gap, 24 bytes
    #[arg(long, hide_short_help = true, requires = "bandwidth")]
    wire: bool,
    /// End after this many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Send from this many threads, each on its own CPU unless --cpus names fewer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// The CPUs to send from, for example 0,2-3 [default: wherever the kernel puts a single thread, else from CPU 0 on]
    #[arg(long, alias = "cpu", hide_short_help = true, value_name = "LIST")]
    cpus: Option<String>,
    /// Send this many frames in one go, then wait until as many are due
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    burst: Option<u64>,
}

impl Pacing {
    pub fn rate(&self) -> Rate {
        match (self.rate, self.bandwidth) {
            (Some(rate), _) => Rate::Frames(rate),
            (None, Some(per_second)) => Rate::Bits {
                per_second,
                overhead: if self.wire { WIRE_OVERHEAD } else { 0 },
            },
            (None, None) => Rate::Unlimited,
        }
    }

    pub fn burst(&self) -> u64 {
        self.burst.unwrap_or(1)
    }

    pub fn count(&self) -> Option<u64> {
        self.count
    }

    pub fn duration(&self) -> Option<Duration> {
        self.duration
    }

    /// One entry for each thread.
    pub fn cpus(&self) -> Result<Vec<Option<usize>>> {
        let chosen = self.cpus.as_deref().map(cpu_list).transpose()?;
        let threads = self.threads.map(usize::from);
        match (chosen, threads) {
            (None, None | Some(1)) => Ok(vec![None]),
            (None, Some(threads)) => Ok((0..threads).map(Some).collect()),
            (Some(cpus), None) => Ok(cpus.into_iter().map(Some).collect()),
            (Some(cpus), Some(threads)) if cpus.len() <= threads => {
                Ok(cpus.into_iter().map(Some).cycle().take(threads).collect())
            }
            (Some(cpus), Some(threads)) => Err(Error::usage(
                format!("cannot put {threads} threads on {} CPUs", cpus.len()),
                "some of the CPUs would have no thread",
            )
            .fix("give at least as many --threads as --cpus, or only one of the two")),
        }
    }
}

/// `0,2-3`
fn cpu_list(text: &str) -> Result<Vec<usize>> {
    let wrong = || Error::usage(format!("--cpus {text}"), "write for example 0,2-3");
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || last > 8191 {
            return Err(wrong());
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(Error::usage(
                    format!("--cpus {text}"),
                    format!("CPU {cpu} is named twice"),
                ));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0,2-4").unwrap(), [0, 2, 3, 4]);
        for text in ["", "a", "1-0", "1,1", "-1", "0-99999999999"] {
            assert!(cpu_list(text).is_err(), "{text}");
        }
    }
}
