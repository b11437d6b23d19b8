//! Missing capabilities are named in the error.

use std::process::{Command, Stdio};

use trawl_tests::programs::object_file;
use trawl_tests::witness::nothing_attached;
use trawl_tests::xdp::{CleanUp, succeeds};
use trawl_tests::{Lab, binary};

/// Runs trawl in the namespace of the receiving end, without these capabilities.
fn refused(lab: &Lab, without: &str, arguments: &[&str]) -> String {
    let without: Vec<String> = without.split(',').map(|one| format!("-{one}")).collect();
    let without = without.join(",");
    let output = Command::new("nsenter")
        .arg(format!("--net=/run/netns/{}", lab.pair.b.name))
        .arg("setpriv")
        .args([format!("--bounding-set={without}"), format!("--inh-caps={without}")])
        .arg(binary::path())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("setpriv and nsenter are part of every Debian system");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn missing_capability_is_named() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let interface = lab.pair.b.interface.as_str();
    let file = object_file(&lab, "loops");
    for (without, missing) in [
        ("perfmon,sys_admin", "lacks CAP_PERFMON"),
        ("bpf,sys_admin", "lacks CAP_BPF"),
        ("perfmon,bpf,sys_admin", "CAP_BPF, CAP_PERFMON"),
        ("net_admin,sys_admin", "CAP_NET_ADMIN"),
    ] {
        for more in [&[][..], &["--tappable"]] {
            let load = ["xdp", "load", interface, &file];
            let said = refused(&lab, without, &[&load[..], more].concat());
            assert!(said.contains(missing), "{missing}: {said}");
            assert!(!said.contains("verifier"), "{said}");
        }
        let said = refused(&lab, without, &["capture", "-i", interface, "--tap", "xdp"]);
        assert!(said.contains(missing), "{missing}: {said}");
    }
    nothing_attached(&lab.pair.b);
    // A capture without the right to open a program gives no advice about it.
    succeeds(&["guard", "load", &lab.receiver()]);
    for tap in ["xdp", "tailcall"] {
        let said = refused(&lab, "sys_admin", &["capture", "-i", interface, "--tap", tap]);
        assert!(said.contains("lacks CAP_SYS_ADMIN") && said.contains("as root"), "{said}");
        assert!(!said.contains("--replace") && !said.contains("guard load"), "{said}");
    }
}

/// A user without access learns that root is required, not that programs are absent.
#[test]
fn inaccessible_programs_are_not_reported_as_absent() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    succeeds(&["guard", "load", &lab.receiver(), "--default", "deny"]);
    for arguments in [
        &["guard", "list"][..],
        &["guard", "list", "--json"],
        &["guard", "save"],
        &["guard", "remove", "--all"],
        &["guard", "unload", "veth0"],
        &["guard", "deny", "--src", "2001:db8::/32"],
        &["guard", "confirm"],
        &["xdp", "confirm", "veth0"],
        &["xdp", "status"],
        &["route", "unload"],
        &["balance", "stats"],
        &["lab", "list"],
        &["lab", "show", "nothing"],
        &["lab", "down", "nothing"],
        &["lab", "clean"],
    ] {
        let output = Command::new("ip")
            .args(["netns", "exec", &lab.pair.b.name])
            .args(["setpriv", "--reuid", "65534", "--regid", "65534"])
            .arg("--clear-groups")
            .arg(binary::path())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("setpriv and ip are part of every Debian system");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("requires root"), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
