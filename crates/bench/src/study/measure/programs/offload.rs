//! Whether a network card of this host runs XDP programs itself.

use trawl_lab::{Pair, PairOptions};

use super::who::label;
use crate::study::harness::process;
use crate::study::{Bench, Stop};

/// Looks for a network card that runs XDP programs itself.
pub fn look(bench: &Bench) -> Stop {
    let mut command = process::command(&bench.trawl);
    let lab = match Pair::new(&PairOptions::default()) {
        Ok(lab) => lab,
        Err(why) => return why.into(),
    };
    command.args(["xdp", "load", &label(&lab.b), "drop", "--mode", "hw"]);
    let refusal = match process::run(&mut command) {
        Ok(_) => return Stop::Failed("a veth took an offloaded program".to_owned()),
        Err(why) => why.to_string(),
    };
    let drivers = cards();
    let cards = match drivers.is_empty() {
        true => "it has no network card".to_owned(),
        false => format!("its network cards use {}", drivers.join(", ")),
    };
    Stop::NotHere(format!(
        "no device of this host can offload XDP: {cards}, and offloading needs a card such as Netronome's (nfp). The kernel's \
         answer for the lab's veth: {}",
        refusal.lines().next().unwrap_or_default()
    ))
}

fn cards() -> Vec<String> {
    let own = |entry: std::fs::DirEntry| {
        let driver = std::fs::read_link(entry.path().join("device/driver")).ok()?;
        Some(format!(
            "{} ({})",
            driver.file_name()?.to_string_lossy(),
            entry.file_name().to_string_lossy()
        ))
    };
    let devices = std::fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    devices.filter_map(own).collect()
}
