//! RFC 2544 over the forwarding lab: throughput, latency at that rate, frame loss, back-to-back, by frame size.

use trawl_lab::{Line, LineOptions};
use trawl_sys::Result;

use super::definition::Space;
use super::{Bench, Case, Measure, Measured, Stop};
use crate::model::{Agreement, Experiment, Finding};
use crate::process;

#[derive(Clone, Copy, Debug)]
pub struct Rfc2544;

impl Measure for Rfc2544 {
    fn cases(&self, space: &Space, _: &Bench) -> Result<Vec<Case>> {
        let seconds = space.number("seconds")?;
        let resolution = space.number("resolution")?;
        let loss = space.number("loss")?;
        Case::each(space, "sizes", |series, size| {
            let is_routed = series.starts_with("trawl");
            Ok(Box::new(move |bench| {
                measure(bench, is_routed, size as usize, seconds, [resolution, loss])
            }))
        })
    }

    fn judge(&self, experiment: &Experiment) -> Finding {
        let at = |series: &str, metric: &str| {
            let line = experiment.line(series, metric);
            line.first().map(|point| (point.x, point.value.median))
        };
        let (Some((size, xdp)), Some((_, linux))) = (
            at("trawl route", "throughput_mpps"),
            at("Linux forwarding", "throughput_mpps"),
        ) else {
            return Finding::default();
        };
        let latency = |series| at(series, "latency_p50_us").map_or(0.0, |(_, latency)| latency);
        Finding {
            agrees: if xdp > linux {
                Agreement::Yes
            } else {
                Agreement::No
            },
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
}

fn measure(
    bench: &Bench,
    is_routed: bool,
    size: usize,
    seconds: f64,
    [resolution, loss]: [f64; 2],
) -> std::result::Result<Measured, Stop> {
    let line = Line::new(&LineOptions::default())?;
    let label = |station: &trawl_lab::Station| format!("{}:{}", station.name, station.interface);
    let (left, right) = (label(&line.left), label(&line.right));
    if is_routed {
        process::run(process::command(&bench.trawl).args(["route", "load", &left, &right]))?;
    }
    let result = process::json(
        &bench.trawl,
        &[
            "gen",
            "rfc2544",
            "--yes",
            "--json",
            "--frame-loss",
            "--back-to-back",
            "--cpu",
            &bench.sender_cpu.to_string(),
            "--tx",
            &label(&line.a),
            "--rx",
            &label(&line.b),
            "--sizes",
            &size.to_string(),
            "--duration",
            &format!("{}ms", (seconds * 1e3) as u64),
            "--resolution",
            &resolution.to_string(),
            "--loss",
            &loss.to_string(),
        ],
    );
    if is_routed {
        process::run(process::command(&bench.trawl).args(["route", "unload", &left, &right]))?;
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
            (
                "loss_at_most_percent",
                loss.first()
                    .and_then(|one| one["loss_percent"].as_f64())
                    .unwrap_or(0.0),
            ),
            (
                "back_to_back_frames",
                result["back_to_back_frames"].as_f64().unwrap_or(0.0),
            ),
        ]
        .into(),
        sent: Some(sent),
        recorded: Some(received),
        seconds: trials().filter_map(|trial| trial["seconds"].as_f64()).sum(),
        ..Measured::default()
    })
}
