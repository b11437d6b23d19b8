//! `trawl bench report`: the page in headless Chromium, Markdown, the comparison, and the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use trawl_tests::{args, binary, skip, trawl};

use crate::bench::{Directory, results};

/// Writes results like a run, with known figures.
fn sample(directory: &Path, factor: f64, is_complete: bool) {
    std::fs::create_dir_all(directory).expect("it can be made");
    let mut runs = Vec::new();
    for (series, rate) in [("ours <1>", 5.0), ("theirs", 2.0)] {
        for x in [1.0, 2.0, 4.0] {
            for repetition in 1..=3 {
                let y = rate * x * factor + f64::from(repetition) * 0.01;
                runs.push(json!({"series": series, "x": x, "repetition": repetition, "values": {"mpps": y, "cpu": y * 2.0},
                    "sent": 1000, "recorded": 900, "lost": 100, "claim": {"recorded": 1000, "wrong": true}, "seconds": 0.1,
                    "cpus": [{"user": 0.5, "system": 0.1, "softirq": 0.2, "steal": 0.0}]}));
            }
        }
    }
    let axis = |name: &str| json!({"name": name, "label": name, "unit": "Mpps", "log": false});
    let definition = json!({"name": "sample", "study": "A", "reference": "figure 1", "title": "A sample", "question": "What?",
        "setup": ["sender", "receiver"], "found": "Theirs is <b>ahead</b>.", "x": axis("threads"), "metrics": [axis("mpps"), axis("cpu")],
        "published": [{"series": "theirs", "metric": "mpps", "points": [[1.0, 3.0], [4.0, 6.0]]}]});
    let report = json!({"schema": "trawl-bench/1", "trawl": "0.1.0", "started_unix": 0, "complete": is_complete,
        "request": {"experiments": ["sample"], "profile": "quick"},
        "conditions": {"host": "h", "cpu": "c", "cpus": 2, "memory_bytes": 1, "kernel": "Linux 6", "hypervisor": true, "mitigations": {},
            "clock_source": "tsc", "load_average": "0", "driver": "veth", "queues": 2, "xdp_mode": "native", "trawl_ring": "64 MiB", "bpf_jit": "1"},
        "peers": [], "experiments": [{"definition": definition, "parameters": {"size": "64"}, "command": "trawl bench run sample", "runs": runs,
            "points": [], "failures": [{"series": "netmap", "message": "not on this host", "runs": 1, "expected": true}],
            "finding": {"agrees": "no", "shows": "ours first", "sentence": "Ours is ahead."}, "seconds": 1.0}]});
    std::fs::write(directory.join("results.json"), report.to_string()).expect("it can be written");
    assert_eq!(results(directory)["schema"], "trawl-bench/1");
}

#[test]
fn chromium_draws_every_point_and_reports_no_error() {
    let Some(chromium) =
        ["/usr/bin/chromium", "/usr/bin/chromium-browser"].into_iter().find(|path| Path::new(path).exists())
    else {
        return skip("chromium is not installed (apt-get install chromium)");
    };
    let directory = Directory::new("chromium");
    let from = directory.0.join("run");
    sample(&from, 1.0, true);
    let page = directory.0.join("report.html");
    let (from, to) = (from.to_str().expect("UTF-8"), page.to_str().expect("UTF-8"));
    assert_eq!(trawl(&["report", from, "-o", to]).status.code(), Some(0));
    for dark in [false, true] {
        let mut command = Command::new(chromium);
        command.args(args!(
            "--headless=new --no-sandbox --disable-gpu --enable-logging=stderr \
             --virtual-time-budget=5000"
        ));
        command.args(dark.then_some("--force-dark-mode"));
        command.arg(format!("--user-data-dir={}", directory.0.join("profile").display()));
        let output =
            command.arg("--dump-dom").arg(format!("file://{to}")).stdin(Stdio::null()).output().expect("it starts");
        let dom = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("CONSOLE"), "{said}");
        assert!(dom.contains("data-drawn=\"2\"") && dom.contains("data-errors=\"\""), "both plots are drawn: {said}");
        assert_eq!(dom.matches("data-points=\"6\"").count(), 2, "two series with three points, in two plots");
        assert_eq!(dom.matches("data-published=\"2\"").count(), 1);
        assert_eq!(dom.matches("<canvas").count(), 2);
        assert!(!dom.contains("<b>ahead") && dom.contains("&lt;b&gt;ahead"), "text is no markup");
    }
    let picture = directory.0.join("page.png");
    let output = trawl(&args!("bench report {from} -o {to} --png {}", picture.to_str().expect("UTF-8")));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read(&picture).expect("a picture").starts_with(b"\x89PNG"));
    let svg = directory.0.join("page.svg");
    let svg_text = svg.to_str().expect("UTF-8");
    let output = trawl(&["bench", "report", from, "-o", to, "--svg", svg_text]);
    assert_eq!(output.status.code(), Some(0));
    let text = std::fs::read_to_string(&svg).expect("a picture");
    assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
    assert!(text.contains("<polyline") && !text.contains("<image"), "vectors");
}

/// A plot with a single x value is drawn as bars, a repeated figure has no plot, and a disturbed run proves nothing.
#[test]
fn disturbed_runs_have_a_banner_and_single_points_are_bars() {
    let directory = Directory::new("banner");
    sample(&directory.0, 1.0, true);
    let file = directory.0.join("results.json");
    let text = std::fs::read_to_string(&file).expect("the results");
    let mut report: Value = serde_json::from_str(&text).expect("JSON");
    let one = &mut report["experiments"][0];
    one["finding"]["agrees"] = json!("yes");
    one["definition"]["published"] = json!([]);
    let runs = one["runs"].as_array_mut().expect("runs");
    runs.retain(|run| run["x"] == 2.0);
    for run in runs.iter_mut() {
        run["values"]["cpu"] = run["values"]["mpps"].clone();
    }
    runs[0]["disturbed"] = json!("another process took 9 % of CPU 1");
    std::fs::write(&file, report.to_string()).expect("it can be written");
    let page = directory.0.join("report.html");
    let arguments = ["bench", "report", directory.text(), "-o"];
    let page_text = page.to_str().expect("UTF-8");
    let output = trawl(&[&arguments[..], &[page_text]].concat());
    assert_eq!(output.status.code(), Some(0));
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.contains("1 of 6 runs were disturbed"), "{html}");
    assert!(html.contains("another process took 9 % of CPU 1"));
    assert!(html.contains("<span class=\"partly\">yes, in a disturbed run</span>"));
    assert!(!html.contains("<span class=\"yes\">"));
    assert_eq!(html.matches("<table class=\"bars\">").count(), 1);
    assert_eq!(html.matches("<div class=\"plot\"").count(), 0);
    assert!(html.contains("All values equal the ones of"));
}

#[test]
fn comparison_of_two_runs_marks_changes() {
    let directory = Directory::new("compared");
    let (before, after) = (directory.0.join("before"), directory.0.join("after"));
    sample(&before, 1.0, true);
    sample(&after, 1.5, true);
    let page = directory.0.join("report.html");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let output = trawl(&args!("bench report {} {} --compare -o {}", text(&before), text(&after), text(&page)));
    assert_eq!(output.status.code(), Some(0));
    let html = std::fs::read_to_string(&page).expect("the page");
    assert_eq!(html.matches("<tr class=\"changed\">").count(), 12);
    assert_eq!(
        trawl(&args!("bench report {} {} --compare -o {}", text(&before), text(&before), text(&page))).status.code(),
        Some(0)
    );
    let html = std::fs::read_to_string(&page).expect("the page");
    assert_eq!(html.matches("<tr class=\"changed\">").count(), 0);
    assert_eq!(trawl(&["bench", "report", &text(&before), "--compare"]).status.code(), Some(2));
    assert_eq!(trawl(&["bench", "report", &text(&directory.0.join("none"))]).status.code(), Some(1));

    let markdown = trawl(&["bench", "report", &text(&before), "--markdown", "-"]);
    let markdown = String::from_utf8_lossy(&markdown.stdout).into_owned();
    assert!(
        markdown.contains("| sample | Theirs is") && markdown.contains("| ours <1> | 1 | 5.020 (5.010 to 5.030)"),
        "{markdown}"
    );
}

#[test]
fn page_of_a_run_in_progress_is_served_and_reloads() {
    let directory = Directory::new("served");
    sample(&directory.0, 1.0, false);
    let mut server = Command::new(binary::path())
        .args(["bench", "report", directory.text(), "--serve"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = String::new();
    BufReader::new(server.stderr.take().expect("a pipe")).read_line(&mut said).expect("a line");
    let address = said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    let live = get("/");
    assert!(live.starts_with("HTTP/1.1 200 OK") && live.contains("http-equiv=\"refresh\""));
    sample(&directory.0, 1.0, true);
    assert!(!get("/").contains("http-equiv=\"refresh\""), "a run that is complete does not change");
    assert!(get("/etc/passwd").starts_with("HTTP/1.1 404"));
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    let _: Value = results(&directory.0);
}
