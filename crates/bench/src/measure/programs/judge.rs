//! What the rates of programs say beside what the studies found.

use crate::model::{Agreement, Experiment, Finding};

fn at(experiment: &Experiment, series: &str, metric: &str, x: f64) -> Option<f64> {
    let line = experiment.line(series, metric);
    line.iter()
        .find(|point| point.x == x)
        .map(|point| point.value.median)
}

fn ends(experiment: &Experiment) -> (f64, f64) {
    let xs = || experiment.points.iter().map(|point| point.x);
    (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max))
}

fn listed(experiment: &Experiment, metric: &str, x: f64, unit: &str) -> String {
    let of = |series: String| {
        let value = at(experiment, &series, metric, x)?;
        Some(format!("{series} {value:.2}{unit}"))
    };
    let parts: Vec<String> = experiment.series().into_iter().filter_map(of).collect();
    parts.join(", ")
}

pub fn threads(experiment: &Experiment) -> Finding {
    let (one, _) = ends(experiment);
    let rate = |series: &str| at(experiment, series, "mpps", one);
    let mut held = Vec::new();
    let mut broken = Vec::new();
    let mut check = |text: String, holds: bool| {
        if holds {
            held.push(text)
        } else {
            broken.push(text)
        }
    };
    for verdict in ["DROP", "PASS", "TX", "REDIRECT"] {
        let (native, generic) = (
            rate(&format!("{verdict} native")),
            rate(&format!("{verdict} generic")),
        );
        if let (Some(native), Some(generic)) = (native, generic) {
            let expected = verdict != "PASS";
            check(
                format!("native {verdict} is {:.1} times generic", native / generic),
                (native > generic) == expected,
            );
        }
    }
    for other in ["PASS native", "TX native", "REDIRECT native"] {
        if let (Some(drop), Some(other_rate)) = (rate("DROP native"), rate(other)) {
            check(
                format!("DROP native is {:.1} times {other}", drop / other_rate),
                drop >= other_rate,
            );
        }
    }
    let rules: Vec<f64> = ["iptables DROP", "nft DROP"]
        .iter()
        .filter_map(|one| rate(one))
        .collect();
    if let (Some(drop), Some(best)) = (rate("DROP native"), rules.iter().copied().reduce(f64::max))
    {
        check(
            format!(
                "native DROP is {:.1} times the firewall's best",
                drop / best
            ),
            drop > best,
        );
    }
    finding(experiment, &held, &broken, one, "1 thread")
}

fn finding(
    experiment: &Experiment,
    held: &[String],
    broken: &[String],
    x: f64,
    place: &str,
) -> Finding {
    let agrees = match (held.is_empty(), broken.is_empty()) {
        (true, true) => Agreement::NotMeasured,
        (false, true) => Agreement::Yes,
        (true, false) => Agreement::No,
        (false, false) => Agreement::Partly,
    };
    let mut sentence = match held.is_empty() {
        true => String::new(),
        false => format!("As published: {}.", held.join("; ")),
    };
    if !broken.is_empty() {
        sentence.push_str(&format!(" Other than published: {}.", broken.join("; ")));
    }
    Finding {
        agrees,
        shows: format!("{place}: {} (Mpps)", listed(experiment, "mpps", x, "")),
        sentence: sentence.trim().to_owned(),
    }
}

pub fn cores(experiment: &Experiment) -> Finding {
    let (one, most) = ends(experiment);
    let (mut held, mut broken) = (Vec::new(), Vec::new());
    for series in experiment.series() {
        let rates = (
            at(experiment, &series, "mpps", one),
            at(experiment, &series, "mpps", most),
        );
        if let (Some(first), Some(last)) = rates
            && most > one
        {
            let text = format!(
                "{series} grows {:.2} times from {one} to {most} cores",
                last / first
            );
            // Near-linear: at least three quarters of the cores' number.
            if last / first > 0.75 * most / one {
                held.push(text)
            } else {
                broken.push(text)
            }
        }
    }
    let rate = |series: &str| at(experiment, series, "mpps", one);
    let order = [
        "DROP native",
        "iptables raw DROP",
        "iptables conntrack DROP",
    ];
    for pair in order.windows(2) {
        if let (Some(first), Some(second)) = (rate(pair[0]), rate(pair[1])) {
            let text = format!("{} is {:.1} times {}", pair[0], first / second, pair[1]);
            if first > second {
                held.push(text)
            } else {
                broken.push(text)
            }
        }
    }
    finding(experiment, &held, &broken, one, "1 core")
}

pub fn cpu_use(experiment: &Experiment) -> Finding {
    let (_, most) = ends(experiment);
    let busy = |series: &str| {
        let line = experiment.line(series, "cpu_percent");
        line.last().map(|point| (point.x, point.value.median))
    };
    let (Some((_, xdp)), Some((load, linux))) = (busy("DROP native"), busy("iptables raw DROP"))
    else {
        return Finding::default();
    };
    Finding {
        agrees: if xdp < linux {
            Agreement::Yes
        } else {
            Agreement::No
        },
        shows: format!(
            "at {most} Mpps: {}",
            listed(experiment, "cpu_percent", most, " %")
        ),
        sentence: format!(
            "At their highest load XDP uses {xdp:.0} % of the receiving core, Linux {linux:.0} % (at {load} Mpps); published: Linux \
             reaches 100 % first, XDP grows slowly."
        ),
    }
}

pub fn route(experiment: &Experiment) -> Finding {
    let (one, full) = ends(experiment);
    let ratio = |x: f64| experiment.paired("trawl route", "Linux forwarding", "mpps", x);
    let Some(single) = ratio(one) else {
        return Finding::default();
    };
    let more = ratio(full).map_or(String::new(), |ratio| {
        format!(", {:.1} times with {full} routes", ratio.median)
    });
    Finding {
        agrees: if single.median > 1.5 {
            Agreement::Yes
        } else {
            Agreement::No
        },
        shows: format!("1 route: {} (Mpps)", listed(experiment, "mpps", one, "")),
        sentence: format!(
            "XDP forwarding is {:.1} times Linux's with one route{more} (published: 3 times, and 2.8 with a full table).",
            single.median
        ),
    }
}
