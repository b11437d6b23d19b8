//! `trawl follow`: one packet's path through the kernel's network stack, to its end.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use trawl_capture::assembly::HostFeatures;
use trawl_capture::event::Event;
use trawl_capture::point::Point;
use trawl_capture::session::{self, Attached, Ended, Observer};
use trawl_capture::subject::{Subject, TO_ENTER};
use trawl_capture::summary::Summary;
use trawl_capture::taps::drop::FollowPoints;
use trawl_explain::follow::{Following, PacketPath, StepFile, lost_records};
use trawl_explain::why::watching_drops;
use trawl_plan::options::{At, CaptureOptions, Drops, Memory};
use trawl_sink::one_file;
use trawl_sys::netns::Namespace;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::args::{LibpcapArg, NamespacesArg, SubjectArgs};
use crate::capture::progress::end_command;
use crate::why::Watcher;
use crate::{json, terminal, units};

/// Shows the path of single packets through the kernel
///
/// Steps are XDP, GRO, tc, netfilter, routing, queues, devices and namespaces, up to the socket or the point where each
/// packet ended. With a command, only the packets of its processes, and their answers, are followed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// End after this many packets
    #[arg(short = 'c', long = "count", value_name = "N", default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    #[command(flatten)]
    namespaces: NamespacesArg,
    /// Only packets that are first seen at this interface, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF", add = crate::completion::interfaces())]
    interfaces: Vec<String>,
    /// Inspect netfilter, tc and XDP in these network namespaces too; with --all-namespaces, in these alone [default:
    /// those in which packets are first seen]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    within: Vec<String>,
    /// Memory for steps that are not printed yet; while half of it is in use, new packets are not followed and count as
    /// lost [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Write each step to this pcapng file, with an interface for each step, and print no paths
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print the paths as well as write them
    #[arg(long, requires = "write")]
    print: bool,
    /// One JSON object a line for each packet
    #[arg(long)]
    json: bool,
    /// Filter in tcpdump's syntax
    #[arg(value_name = "FILTER", required_unless_present = "subject")]
    expression: Vec<String>,
    #[command(flatten)]
    subject: SubjectArgs,
    #[command(flatten)]
    libpcap: LibpcapArg,
}

impl Args {
    /// Returns the namespaces in which packets are first seen; none for all.
    fn names(&self) -> Vec<String> {
        if self.subject.words.is_empty() { self.namespaces.names() } else { self.namespaces.names_for_command() }
    }

    /// Returns the namespaces with netfilter, tc and XDP programs to inspect; none for all.
    fn within(&self) -> Vec<String> {
        let of_interfaces = self.interfaces.iter().map(|name| name.split_once(':'));
        let named: Option<Vec<_>> = of_interfaces.collect();
        let mut names = match named {
            Some(named) if !named.is_empty() => named.into_iter().map(|(name, _)| name.to_owned()).collect(),
            _ => self.names(),
        };
        names.extend(self.within.iter().cloned());
        names.sort();
        names.dedup();
        names
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    let drops = Drops {
        no_losses: true,
        follow: true,
        namespaces: args.names(),
        entries: args.interfaces.clone(),
        within: args.within(),
        ..Drops::default()
    };
    let follow_points = FollowPoints::find(&drops)?;
    let namespaces = follow_points.namespaces.clone();
    let sites = follow_points.with_programs();
    let mut options = CaptureOptions {
        at: Some(At::Both),
        memory: args.memory.map_or(Memory::Usual, Memory::Total),
        ..watching_drops(drops, &args.expression, args.duration)
    };
    let losses = Rc::new(Cell::new(0));
    let mut observer = Follower {
        watcher: Watcher {
            json: args.json,
            started: |point| {
                let is_whole = point.site.is_none();
                is_whole.then(|| format!("following packets on {}", point.label))
            },
            subject: Subject::prepare(&args.subject.words, &mut options, true, None)?,
            names_all: args.subject.words.is_empty(),
        },
        losses: Rc::clone(&losses),
    };
    let mut attached = session::attach(&sites, &options, HostFeatures::this(), &mut observer)?;
    let file = args.write.as_deref();
    let file = file.map(|path| one_file(path, &mut attached));
    let file = file.transpose()?.map(StepFile::new).transpose()?;
    let to_enter = match &observer.watcher.subject {
        Some(_) => TO_ENTER,
        None => Capabilities::empty(),
    };
    let confined = attached.confine(None, to_enter)?;
    let prints = args.write.is_none() || args.print;
    let mut show = |path: &PacketPath| match (prints, args.json) {
        (false, _) => Ok(()),
        (true, true) => json::print(path),
        (true, false) => terminal::write_out(&path.to_string()),
    };
    let mut following = Following::begin(confined.attached(), args.count, &namespaces, losses, file, &mut show);
    let (summary, ended) = confined.run(&mut following, &mut observer)?;
    let ends = following.into_ends(&summary.total)?;
    let status = end_command(observer.watcher.subject);
    json::show_notice(&ends);
    let text = format!("steps: {}", summary.total);
    json::event_as(&Event::Account(summary.total), &text);
    match ended {
        Ended::Signal | Ended::Duration | Ended::Count | Ended::Size | Ended::Command => Ok(ExitCode::from(status)),
        Ended::Output(error) => Err(error),
        other => Err(Error::failed("cannot continue to follow packets", other)),
    }
}

/// A reporter that also watches the losses.
struct Follower {
    watcher: Watcher,
    losses: Rc<Cell<u64>>,
}

impl Observer for Follower {
    fn attached(&mut self, attached: &Attached) -> Result<()> {
        self.watcher.attached(attached)
    }

    fn event(&mut self, event: &Event) {
        self.watcher.event(event);
    }

    fn started(&mut self, points: &[Point]) {
        self.watcher.started(points);
    }

    fn entered(&mut self) -> Vec<Namespace> {
        self.watcher.entered()
    }

    fn is_urgent(&mut self) -> bool {
        self.watcher.is_urgent()
    }

    fn attention(&self) -> Duration {
        self.watcher.attention()
    }

    fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        self.watcher.wakes()
    }

    fn is_over(&mut self) -> bool {
        self.watcher.is_over()
    }

    fn figures(&mut self, summary: &Summary) {
        self.watcher.figures(summary);
    }

    fn tick(&mut self, summary: &mut dyn FnMut() -> Summary) {
        self.losses.set(lost_records(&summary().total));
    }
}
