//! Features of kernels with tracing programs, which observe attached programs without changing them.

mod chains;
mod changes;
mod ends;
mod jumps;
mod redirects;
mod several;

use trawl_bpf::probe::KernelFeature;
use trawl_tests::{Lab, tracing_or_skip, trawl};

/// Opens a lab for a test that traces.
fn lab() -> Option<Lab> {
    tracing_or_skip().then(Lab::open).flatten()
}

#[test]
fn doctor_finds_tracing() {
    if !tracing_or_skip() {
        return;
    }
    let output = trawl(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("the doctor's report is JSON");
    let findings = report.as_array().or_else(|| report["findings"].as_array());
    let findings = findings.unwrap_or_else(|| panic!("{report}"));
    for feature in [KernelFeature::Fentry, KernelFeature::Fexit] {
        let found = findings.iter().find(|one| one["subject"] == feature.name()).unwrap_or_else(|| panic!("{report}"));
        assert_eq!(found["state"], "ok", "{found}");
    }
}
