//! RFC 2544 over the forwarding lab: throughput, latency at that rate, frame loss, back-to-back, by frame size.

use trawl_lab::{Line, LineOptions};
use trawl_sys::Result;

use super::definition::Space;
use super::{Bench, Case, Measured, Outcome, Stop};
use crate::model::{Agreement, Experiment, Finding};
use crate::process;
use crate::traffic::{SENDER_CPU, label};

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    let limits = [space.number("resolution")?, space.number("loss")?];
    Case::each(space, "sizes", |series, size| {
        let is_routed = series.starts_with("trawl");
        Ok(move |bench: &Bench| measure(bench, is_routed, size as usize, seconds, limits))
    })
}

pub fn judge(experiment: &Experiment) -> Finding {
    let (size, _) = experiment.ends();
    let at = |series: &str, metric: &str| experiment.median(series, metric, size);
    let rate = |series: &str| at(series, "throughput_mpps");
    let (Some(xdp), Some(linux)) = (rate("trawl route"), rate("Linux forwarding")) else {
        return Finding::default();
    };
    let latency = |series: &str| at(series, "latency_p50_us").unwrap_or_default();
    Finding {
        agrees: Agreement::of(xdp > linux),
        shows: format!(
            "{size} B without loss: trawl route {xdp:.2} Mpps, Linux forwarding {linux:.2} Mpps; latency at that rate {:.1} and {:.1} us",
            latency("trawl route"),
            latency("Linux forwarding")
        ),
        sentence: format!(
            "Without loss XDP forwards {:.1} times what Linux forwards; the sender, on the router's CPU, is part of either figure.",
            xdp / linux.max(f64::EPSILON)
        ),
    }
}

fn measure(bench: &Bench, is_routed: bool, size: usize, seconds: f64, [resolution, loss]: [f64; 2]) -> Outcome {
    let line = Line::new(&LineOptions::default())?;
    let (left, right) = (label(&line.left), label(&line.right));
    if is_routed {
        bench.run(&["route", "load", &left, &right])?;
    }
    let mut generator = bench.command(&["gen", "rfc2544", "--yes", "--json"]);
    generator.args(["--frame-loss", "--back-to-back"]);
    generator.args(["--tx", &label(&line.a), "--rx", &label(&line.b)]);
    for (option, value) in [
        ("--cpu", SENDER_CPU.to_string()),
        ("--sizes", size.to_string()),
        ("--duration", format!("{}ms", (seconds * 1e3) as u64)),
        ("--resolution", resolution.to_string()),
        ("--loss", loss.to_string()),
    ] {
        generator.args([option, &value]);
    }
    let result = process::json_of(&mut generator);
    if is_routed {
        bench.run(&["route", "unload", &left, &right])?;
    }
    let result = &result?["results"][0];
    let Some(throughput) = result["throughput_frames_per_second"].as_f64() else {
        let last = result["trials"].as_array().and_then(|trials| trials.last());
        let number = |name: &str| last.and_then(|trial| trial[name].as_f64()).unwrap_or(0.0);
        return Err(Stop::Failed(format!(
            "no rate was without loss at {size} bytes: {} of {} were lost at {:.0} frames/s",
            number("lost"),
            number("sent"),
            number("offered_frames_per_second")
        )));
    };
    let latency = |name: &str| result["latency_ns"][name].as_f64().unwrap_or(0.0) / 1e3;
    let none = Vec::new();
    let loss = result["frame_loss"].as_array().unwrap_or(&none);
    let trials = || result["trials"].as_array().unwrap_or(&none).iter();
    let sum = |name: &str| trials().filter_map(|trial| trial[name].as_u64()).sum();
    let (sent, received): (u64, u64) = (sum("sent"), sum("received"));
    Ok(Measured {
        values: [
            ("throughput_mpps", throughput / 1e6),
            ("throughput_gbits", throughput * size as f64 * 8.0 / 1e9),
            ("latency_p50_us", latency("p50")),
            ("latency_p99_us", latency("p99")),
            ("loss_at_most_percent", loss.first().and_then(|one| one["loss_percent"].as_f64()).unwrap_or(0.0)),
            ("back_to_back_frames", result["back_to_back_frames"].as_f64().unwrap_or(0.0)),
        ]
        .into(),
        sent: Some(sent),
        recorded: Some(received),
        seconds: trials().filter_map(|trial| trial["seconds"].as_f64()).sum(),
        ..Measured::default()
    })
}
