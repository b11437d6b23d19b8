//! The documentation as a site: `make site`, and the check of its pages.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use trawl_tests::tools_or_skip;

use crate::bench::Directory;

fn script(name: &str, arguments: &[&str]) -> Output {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Command::new(repository.join("scripts").join(name)).args(arguments).output().expect("a script of the source")
}

/// Checks a site of one page with this body; returns the messages.
fn checked(body: &str) -> (bool, String) {
    let directory = Directory::new("site");
    fs::write(directory.0.join("style.css"), "a { color: red }").expect("a file");
    fs::write(directory.0.join("index.html"), format!("<html><body><h1 id=\"top\">Top</h1>{body}</body></html>"))
        .expect("a file");
    let output = script("check-site", &[directory.0.to_str().expect("UTF-8")]);
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn files_of_other_hosts_and_links_that_lead_nowhere_are_found() {
    if !tools_or_skip(&["python3"]) {
        return;
    }
    let good =
        "<link rel=\"stylesheet\" href=\"style.css\"><a href=\"#top\">top</a><a href=\"https://example.org/\">out</a>";
    let (passes, said) = checked(good);
    assert!(passes && said.contains("nothing is loaded from another host"), "{said}");
    for (body, problem) in [
        ("<script src=\"https://example.org/a.js\"></script>", "loads https://example.org/a.js"),
        ("<img src=\"//example.org/a.png\">", "loads //example.org/a.png"),
        ("<style>@import '//example.org/a.css'</style>", "loads //example.org/a.css"),
        ("<p style=\"background: url(http://example.org/a.png)\">", "loads http://example.org/a.png"),
        ("<a href=\"missing.html\">page</a>", "links to missing.html: no such file"),
        ("<a href=\"#bottom\">bottom</a>", "links to #bottom: no such heading"),
    ] {
        let (passes, said) = checked(body);
        assert!(!passes && said.contains(problem), "{body}: {said}");
    }
}

/// Builds mdBook on the first run, which takes minutes.
#[test]
#[ignore = "make test-long runs it"]
fn site_has_all_pages_and_loads_nothing_from_other_hosts() {
    if !tools_or_skip(&["python3", "mandoc", "cargo", "git"]) {
        return;
    }
    let output = script("site", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let checked = String::from_utf8_lossy(&output.stdout);
    assert!(checked.contains("nothing is loaded from another host"), "{checked}");
    let site = said.lines().find_map(|line| line.strip_prefix("The site is in ")).expect("the directory of the site");
    for page in ["index", "docs/lessons/index", "docs/symptoms/tcpdump-shows-nothing", "docs/man/trawl-capture"] {
        assert!(Path::new(site).join(page).with_extension("html").exists(), "{page}");
    }
}
