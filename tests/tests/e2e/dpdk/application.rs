//! A DPDK application for the tests: testpmd, which forwards between two ports, in temporary huge pages.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use trawl_lab::{Line, LineOptions};
use trawl_tests::lab::{Files, LineLab};
use trawl_tests::witness::run;
use trawl_tests::{args, binary, skip, tools_or_skip, wait_until};

/// Number of huge pages, 128 MiB in all. A machine that has been busy for long has little more contiguous memory.
const PAGES: u64 = 64;
/// Attempts, each after compacting the memory.
const ATTEMPTS: usize = 10;
const PAGES_SETTING: &str = "/proc/sys/vm/nr_hugepages";

/// Allows one application at a time, because each keeps a CPU busy and occupies huge pages.
static ONE: Mutex<()> = Mutex::new(());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns true if the machine supports DPDK; otherwise reports that the test is skipped.
fn ready_or_skip() -> bool {
    if !tools_or_skip(&["dpdk-testpmd", "dpdk-dumpcap", "nsenter"]) {
        return false;
    }
    if std::env::var_os("TRAWL_TESTS_MACHINE").is_some() {
        skip("the virtual machine has no memory for huge pages");
        return false;
    }
    let helper = binary::path().with_file_name("trawl-dpdk");
    if !helper.is_file() {
        skip("trawl-dpdk is not built: make build-dpdk");
    }
    helper.is_file()
}

/// Huge pages and their mount point, restored when dropped.
struct Pages {
    before: Option<u64>,
    mounted: PathBuf,
    /// Keeps other runs of the tests on this machine waiting. Their return of pages would take pages that an
    /// application has not touched yet.
    _lock: File,
}

impl Pages {
    fn take(mounted: PathBuf) -> Option<Self> {
        let number = |name: &str| {
            let text = fs::read_to_string("/proc/meminfo").ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        if number("Hugepagesize") != Some(2048) {
            skip("huge pages of this machine are not of 2 MiB");
            return None;
        }
        let free = || number("HugePages_Free").unwrap_or(0);
        let lock = File::open(PAGES_SETTING).expect("the setting can be read");
        lock.lock().expect("the other run ends");
        let mut pages = Self { before: None, mounted, _lock: lock };
        if free() < PAGES {
            let all = number("HugePages_Total").unwrap_or(0);
            pages.before = Some(all);
            for _ in 0..ATTEMPTS {
                let _ = fs::write(PAGES_SETTING, (all + PAGES).to_string());
                if free() >= PAGES {
                    break;
                }
                let _ = fs::write("/proc/sys/vm/compact_memory", "1");
            }
        }
        if free() < PAGES {
            skip(&format!("{} of {PAGES} huge pages can be had", free()));
            return None;
        }
        fs::create_dir(&pages.mounted).expect("a directory");
        run("mount", &args!("-t hugetlbfs -o pagesize=2M none {}", pages.place()));
        Some(pages)
    }

    fn place(&self) -> String {
        self.mounted.display().to_string()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mounted).stderr(Stdio::null()).status();
        if let Some(before) = self.before {
            let _ = fs::write(PAGES_SETTING, before.to_string());
        }
    }
}

/// A running testpmd.
pub struct Application {
    child: Option<Child>,
    pub prefix: String,
    pub lab: LineLab,
    // The pages are dropped after the process, which uses their memory.
    _pages: Pages,
    _one: MutexGuard<'static, ()>,
}

impl Application {
    /// Starts it on the two interfaces in the middle of a line.
    pub fn on_veths() -> Option<Self> {
        Self::start(|line| {
            // The rings need room for packets that arrive while testpmd waits for a CPU.
            let port =
                |number, interface: &str| format!("--vdev=net_af_packet{number},iface={interface},framecnt=8192");
            [port(0, &line.left.interface), port(1, &line.right.interface)]
        })
    }

    /// Starts it on two ports that generate packets at full speed.
    pub fn on_null() -> Option<Self> {
        Self::start(|_| [0, 1].map(|number| format!("--vdev=net_null{number},size=64")))
    }

    fn start(ports: impl Fn(&Line) -> [String; 2]) -> Option<Self> {
        let one = ONE.lock().unwrap_or_else(|held| held.into_inner());
        if !ready_or_skip() {
            return None;
        }
        let lab = LineLab::with(&LineOptions { queues: 1, quiet: true, ..LineOptions::default() })?;
        let pages = Pages::take(PathBuf::from(lab.file("huge")))?;
        // Each application has a prefix of its own, because the helper of a failed test may still use the previous one.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("trawltest{}_{number}", std::process::id());
        let log = lab.file("testpmd.log");
        let output = File::create(&log).expect("a file");
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", lab.line.left.name))
            .args(args!("stdbuf -oL dpdk-testpmd --lcores 0@0,1@1 --no-pci"))
            .args(args!("--no-telemetry --file-prefix {prefix} --huge-dir {}", pages.place()))
            .args(ports(&lab.line))
            .args(["--", "--forward-mode=io", "--auto-start", "--total-num-mbufs=4096"])
            // testpmd ends at the end of its input, and so with this process.
            .stdin(Stdio::piped())
            .stdout(output.try_clone().expect("the file again"))
            .stderr(output);
        let child = command.spawn().expect("testpmd starts");
        let mut application = Self { child: Some(child), prefix, lab, _pages: pages, _one: one };
        let mut said = String::new();
        wait_until("testpmd forwards", || {
            said = fs::read_to_string(&log).unwrap_or_default();
            said.contains("Press enter to exit") || !application.is_alive()
        });
        assert!(application.is_alive(), "testpmd has ended: {said}");
        Some(application)
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("testpmd runs");
            child.wait().expect("it ended");
        }
    }

    pub fn is_alive(&mut self) -> bool {
        let child = self.child.as_mut().expect("it was not killed");
        child.try_wait().expect("a child of ours").is_none()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(format!("/run/dpdk/{}", self.prefix));
    }
}
