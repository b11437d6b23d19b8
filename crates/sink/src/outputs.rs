//! The outputs of a capture: files, pipes, sockets for readers, and a series of files. They are opened before anything
//! is attached, since a named pipe makes trawl wait for its reader, and become writers once the capture is set up.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::mem::take;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use trawl_capture::dedup::DedupStage;
use trawl_capture::event::{Event, OutputSummary};
use trawl_capture::session::{Attached, Ended, Observer};
use trawl_capture::summary::Summary;
use trawl_io::disk::open_directly;
use trawl_packet::pcapng::Interface;
use trawl_pipeline::report::StageReport;
use trawl_pipeline::{Counts, Feed, FileWriter, Origin, Source, Stage, WriteOutcome, Writer, carry};
use trawl_plan::CapturePlan;
use trawl_plan::outputs::{Compression, FilePlan, Format, Io, LISTEN, ListenPlan, OutputPlan, Rotation};
use trawl_source::{PrivacyStage, packets_of, privacy};
use trawl_sys::process::warden::{self, CutFile, Undo, Warden, WholeBytes};
use trawl_sys::rights::privilege::{Capabilities, KeptPrivileges, User};
use trawl_sys::{
    Error, Result,
    files::{create, outfile},
};
use trawl_view::Show;
use trawl_view::record::RingPackets;

use crate::pcap_check::PcapCheck;
use crate::series::Accounts;
use crate::shown::Shown;
use crate::{
    Budget, DirectFile, Listener, NextFiles, OutputFate, OutputForm, Packed, Pipe, PlainFile, ReaderLog, Series,
    SeriesPlan, Several, ThreadedOutput, compression_threads,
};

const STDOUT: &str = "/proc/self/fd/1";

/// Returns true if the name stands for standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns true if the name stands for an open file, as /dev/stdout does. Such an output is not rotated.
fn is_open_already(path: &Path) -> bool {
    let is_link = || path.symlink_metadata().is_ok_and(|about| about.is_symlink());
    is_stdout(path) || ((path.starts_with("/dev") || path.starts_with("/proc")) && is_link())
}

/// Returns true for a named pipe, which can only be opened once it has a reader.
fn is_named_pipe(path: &Path) -> bool {
    !is_open_already(path) && std::fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo())
}

/// Returns the identity of a file. Devices have none, since they accept several writers.
fn identity(about: &Metadata) -> Option<(u64, u64)> {
    (!about.file_type().is_char_device()).then(|| (about.dev(), about.ino()))
}

/// Returns true if two paths name the same file, whether it exists or not.
pub fn are_same(one: &Path, other: &Path) -> bool {
    let about = |path: &Path| if is_stdout(path) { std::fs::metadata(STDOUT) } else { std::fs::metadata(path) };
    match (about(one), about(other)) {
        (Ok(one), Ok(other)) => identity(&one).is_some_and(|one| identity(&other) == Some(one)),
        _ => one == other,
    }
}

/// Refuses the pcap format for interfaces of several link types.
pub fn one_link_type(format: Format, mut all: impl Iterator<Item = u16>) -> Result<()> {
    let first = all.next();
    if format == Format::Pcap && all.any(|other| Some(other) != first) {
        let why = "it holds one link type, and the interfaces have different ones";
        return Err(Error::usage("cannot write the pcap format", why).fix("use --format pcapng"));
    }
    Ok(())
}

/// A file made for a capture, removed unless packets or a summary are written to it.
#[derive(Debug)]
struct Created(Option<PathBuf>);

impl Drop for Created {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A file or pipe that packets or the summary are written to.
#[derive(Debug)]
pub struct Output {
    pub file: File,
    pub name: String,
    created: Created,
    regular: bool,
}

impl Output {
    /// Opens without changing existing contents: the capture may still fail to start. Created files belong to `user`.
    pub fn open(path: &Path, mode: Option<u32>, user: Option<&User>) -> Result<Self> {
        let open = || Self::open_as_is(path, mode);
        user.map_or_else(open, |user| user.act_as(open))
    }

    fn open_as_is(path: &Path, mode: Option<u32>) -> Result<Self> {
        if is_stdout(path) {
            let name = "standard output";
            let file = io::stdout().as_fd().try_clone_to_owned();
            return Ok(Self {
                file: File::from(file.map_err(|e| cannot_write(name, e))?),
                name: name.to_owned(),
                created: Created(None),
                regular: false,
            });
        }
        let name = path.display().to_string();
        let (file, is_new) = outfile::open(path, mode)?;
        let created = Created(is_new.then(|| path.to_owned()));
        let about = file.metadata().map_err(|e| cannot_write(&name, e))?;
        Ok(Self { file, name, created, regular: about.is_file() })
    }

    /// Returns the identity of the file; `None` for a device.
    fn identity(&self) -> Option<(u64, u64)> {
        identity(&self.file.metadata().ok()?)
    }

    /// Refuses compression of a pipe, since the frame table has to be written at a fixed position.
    fn check_compression(&self, compression: Option<Compression>) -> Result<()> {
        let is_device = self.identity().is_none();
        if compression.is_none() || self.regular || is_device {
            Ok(())
        } else {
            Err(not_compressed(&self.name).fix("write to a file, or pipe the output into a compressor: -w - | zstd"))
        }
    }

    /// Empties a file; returns the number of bytes that a kill leaves in it, or `None` for a pipe.
    pub fn empty(&self) -> Result<Option<WholeBytes>> {
        if !self.regular {
            return Ok(None);
        }
        self.file.set_len(0).map_err(|e| cannot_write(&self.name, e))?;
        WholeBytes::new().map(Some)
    }

    /// Keeps the file: it is no longer removed on drop.
    pub fn keep(&mut self) {
        self.created.0 = None;
    }
}

fn not_compressed(name: &str) -> Error {
    let what = format!("cannot compress the output to {name}");
    Error::usage(what, "it is not a named file")
}

fn cannot_write(name: &str, error: io::Error) -> Error {
    Error::os(format!("cannot write to {name}"), error)
}

/// An open output.
#[derive(Debug)]
enum Opened {
    File(Output),
    /// A socket, and the name of the output with its port.
    Readers(Listener, String),
}

impl Opened {
    fn file(&self) -> Option<&Output> {
        match self {
            Self::File(output) => Some(output),
            Self::Readers(..) => None,
        }
    }

    /// Listens for readers, and reports the address.
    fn listen(output: &OutputPlan, plan: &ListenPlan, observer: &mut dyn Observer) -> Result<Self> {
        let name = output.path.display().to_string();
        if output.compression.is_some() {
            return Err(not_compressed(&name).fix("leave out --compress and compress="));
        }
        let listener = Listener::bind(plan)?;
        let address = listener.address();
        let name = format!("{LISTEN}{address}");
        observer.event(&Event::Listening {
            output: name.clone(),
            address,
            tls: plan.tls.is_some(),
            any_port: plan.address.port() == 0,
        });
        Ok(Self::Readers(listener, name))
    }
}

/// The outcome of the packets of a source.
#[derive(Debug)]
pub struct Carried {
    pub outcome: WriteOutcome,
    /// Decisions of the stages before the outputs.
    pub report: StageReport,
    /// The outcome of each output, if there are several.
    pub outputs: Vec<OutputSummary>,
}

impl Carried {
    /// Returns the outcome of packets of which none is known to have been written.
    pub fn failed(error: Error) -> Self {
        Self { outcome: WriteOutcome::failed(error), report: StageReport::default(), outputs: Vec::new() }
    }
}

/// All outputs of a capture.
pub struct Outputs {
    first: First,
    others: Vec<(OutputPlan, Opened)>,
    /// Form in which packets are also shown on standard output.
    shown: Option<Box<dyn Show + Send>>,
    files: FilePlan,
    user: Option<User>,
    /// Memory for the queues of all readers together.
    pub for_readers: usize,
    origin: Origin,
    /// Leaves out duplicates among the packets of a source; a capture has such a stage of its own.
    dedup: Option<DedupStage>,
    /// Anonymizes packets before all outputs.
    privacy: Option<PrivacyStage>,
    /// Identities and names of the input files, which must not be written to.
    inputs: Vec<((u64, u64), String)>,
    /// Receives events that are reported even if the observer is quiet.
    say: fn(&Event),
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outputs").field("first", &self.first).field("others", &self.others).finish_non_exhaustive()
    }
}

/// The first output, which alone may be a series of files.
#[derive(Debug)]
enum First {
    /// Packets go to a store, or are only shown.
    None,
    One(OutputPlan, Opened),
    Series(OutputPlan, SeriesPlan),
}

impl Outputs {
    /// Opens the outputs of a plan. With `shown`, packets are also shown on standard output in that form.
    pub fn open(
        plan: &CapturePlan,
        shown: Option<Box<dyn Show + Send>>,
        user: Option<User>,
        observer: &mut dyn Observer,
        say: fn(&Event),
    ) -> Result<Self> {
        let files = plan.files;
        let privacy = privacy(false, plan.anonymize.as_deref())?.map(PrivacyStage::new);
        let dedup = plan.options.dedup.map(|window| DedupStage::new(window, plan.options.count));
        let by_event = plan.options.trigger.is_some();
        let mut open = |one: &OutputPlan| {
            if let Some(listen) = &one.listen {
                return Opened::listen(one, listen, observer);
            }
            if is_named_pipe(&one.path) {
                let output = one.path.display().to_string();
                observer.event(&Event::WaitsForReader { output });
            }
            let output = Output::open(&one.path, files.mode, user.as_ref())?;
            output.check_compression(one.compression)?;
            Ok(Opened::File(output))
        };
        let series = series(plan.outputs.first(), &plan.rotation, files.io, by_event)?;
        let mut plans = plan.outputs.iter().cloned();
        let first = match (plans.next(), series) {
            (None, _) => First::None,
            (Some(one), Some(series)) => First::Series(one, series),
            (Some(one), None) => {
                let output = open(&one)?;
                First::One(one, output)
            }
        };
        let others = plans.map(|one| {
            let output = open(&one)?;
            Ok((one, output))
        });
        let others = others.collect::<Result<_>>()?;
        let all = Self {
            first,
            others,
            shown,
            files,
            user: user.clone(),
            for_readers: 0,
            origin: Origin::Live,
            dedup,
            privacy,
            inputs: Vec::new(),
            say,
        };
        all.check_apart()?;
        all.check_io(observer)?;
        Ok(all)
    }

    fn all(&self) -> impl Iterator<Item = (&OutputPlan, &Opened)> {
        let first = match &self.first {
            First::One(plan, output) => Some((plan, output)),
            First::None | First::Series(..) => None,
        };
        let others = self.others.iter().map(|(plan, output)| (plan, output));
        first.into_iter().chain(others)
    }

    /// Returns the files and pipes that are open.
    fn opened(&self) -> impl Iterator<Item = (&OutputPlan, &Output)> {
        self.all().filter_map(|(plan, output)| Some((plan, output.file()?)))
    }

    /// Returns the names of outputs with readers, and their logs.
    pub fn readers(&self) -> impl Iterator<Item = (String, ReaderLog)> {
        self.all().filter_map(|(_, output)| match output {
            Opened::Readers(listener, name) => Some((name.clone(), listener.log())),
            Opened::File(_) => None,
        })
    }

    /// Returns true if packets are shown, or written to a pipe or a socket: somebody may wait for each of them.
    pub fn are_awaited(&self) -> bool {
        self.shown.is_some() || self.all().any(|(_, output)| output.file().is_none_or(|file| !file.regular))
    }

    /// Returns the addresses at which readers connect.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.all().filter_map(|(_, output)| match output {
            Opened::Readers(listener, _) => Some(listener.address()),
            Opened::File(_) => None,
        })
    }

    /// Refuses to write to files that packets are read from.
    pub fn refuse_inputs(&mut self, inputs: Vec<((u64, u64), String)>) -> Result<()> {
        self.inputs = inputs;
        self.opened().try_for_each(|(_, output)| check_input(&self.inputs, &output.file, &output.name))
    }

    /// Refuses two outputs to one file, which would destroy each other's data.
    fn check_apart(&self) -> Result<()> {
        let mut known: Vec<(u64, u64)> = Vec::new();
        if self.shown.is_some()
            && let Ok(about) = std::fs::metadata(STDOUT)
        {
            known.extend(identity(&about));
        }
        for (_, output) in self.opened() {
            let Some(identity) = output.identity() else {
                continue;
            };
            if known.contains(&identity) {
                let what = format!("cannot write to {} as well", output.name);
                let why = "another output writes to it";
                return Err(Error::usage(what, why).fix("name another file"));
            }
            known.push(identity);
        }
        Ok(())
    }

    /// Reports how files are written, and fails if the requested mode is impossible. For a series, a temporary file in
    /// its directory is tried.
    fn check_io(&self, observer: &mut dyn Observer) -> Result<()> {
        if let First::Series(plan, _) = &self.first {
            let temporary_file = || match &self.user {
                Some(user) => user.act_as(|| Ok(temporary_file(plan))).ok().flatten(),
                None => temporary_file(plan),
            };
            check_io(plan, self.files.io, || temporary_file().map(|file| open_directly(file.as_fd())), observer)?;
        }
        for (plan, output) in self.opened().filter(|(_, output)| output.regular) {
            let direct = || Some(open_directly(output.file.as_fd()));
            check_io(plan, self.files.io, direct, observer)?;
        }
        Ok(())
    }

    /// Records a capture to all outputs, and shows the packets as well.
    pub fn record(mut self, mut attached: Attached, observer: &mut dyn Observer) -> Result<(Summary, Ended)> {
        // A library reports link types only once the devices are open.
        let interfaces = attached.interfaces().iter();
        one_link_type(self.first_format(), interfaces.map(|one| one.link_type))?;
        let user = self.user.clone();
        let privacy = self.privacy.take();
        let accounts = attached.accounts();
        let prepared = self.prepare(attached.files_warden(), accounts, true)?;
        let confined = attached.confine(user, Capabilities::empty())?;
        // Compression starts threads, which inherit the rights of this thread: it gives up its own before.
        let capture = confined.attached();
        let interface = capture.interfaces().first().cloned().unwrap_or_default();
        let packets = match privacy {
            // Names of interfaces are replaced in the blocks.
            Some(_) => RingPackets::default(),
            None => packets_of(capture),
        };
        let mut writers = prepared.start(Stream { interface, packets })?;
        let mut ran = match privacy {
            Some(stage) => confined.run(&mut Feed::new(vec![Box::new(stage)], writers.writer()), observer),
            None => confined.run(writers.writer(), observer),
        };
        let outputs = writers.end();
        if let Ok((summary, _)) = &mut ran {
            summary.outputs.extend(outputs);
        }
        ran
    }

    /// Writes the packets of a source to all outputs, and shows them as well. `between` is called while packets are
    /// moved.
    pub fn carry(mut self, source: &mut dyn Source, between: &mut dyn FnMut()) -> Result<Carried> {
        let mut warden = Warden::default();
        self.origin = source.origin();
        let (dedup, privacy) = (self.dedup.take(), self.privacy.take());
        let is_live = self.origin.is_live();
        if let First::Series(_, series) = &mut self.first {
            series.by_packets = !is_live;
        }
        let is_encoded = |plan: &OutputPlan| plan.format == Format::Pcap && self.origin != Origin::FilesAsStored;
        let has_pcap = self.plans().any(is_encoded);
        let files = self.opened().filter(|(plan, output)| is_encoded(plan) && output.regular);
        let files: Vec<_> = files
            .map(|(plan, output)| Ok((plan.path.clone(), output.file.try_clone()?)))
            .collect::<io::Result<_>>()
            .map_err(|e| Error::os("cannot write the pcap format", e))?;
        let prepared = self.prepare(&mut warden, Box::new(Vec::new), !is_live)?;
        source.start()?;
        let mut interface = Interface { snaplen: 0, ..Interface::default() };
        let mut stages: Vec<Box<dyn Stage>> = Vec::new();
        stages.extend(dedup.map(|stage| Box::new(stage) as Box<dyn Stage>));
        stages.extend(privacy.map(|stage| Box::new(stage) as Box<dyn Stage>));
        if has_pcap {
            interface.link_type = source.link_type()?;
            stages.push(Box::new(PcapCheck::new(interface.link_type)));
        }
        let mut writers = prepared.start(Stream { interface, packets: RingPackets::default() })?;
        let mut feed = Feed::new(stages, writers.writer());
        let outcome = carry(source, &mut feed, between);
        let report = feed.report();
        drop(feed);
        let outputs = writers.end();
        if report.is_refused && !is_live {
            // Half a file would look complete. Where its directory forbids the removal, the file is at least empty.
            for (path, file) in files {
                let _ = file.set_len(0);
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(Carried { outcome: outcome?, report, outputs })
    }

    fn plans(&self) -> impl Iterator<Item = &OutputPlan> {
        let first = match &self.first {
            First::One(plan, _) | First::Series(plan, _) => Some(plan),
            First::None => None,
        };
        first.into_iter().chain(self.others.iter().map(|(plan, _)| plan))
    }

    fn first_format(&self) -> Format {
        self.plans().next().map_or(Format::Pcapng, |plan| plan.format)
    }

    /// Empties the files, and starts the processes that watch over them. No thread may be running. `gives_up` is true if
    /// this process gives up its rights later.
    fn prepare(self, warden: &mut Warden, accounts: Accounts, gives_up: bool) -> Result<Prepared> {
        let Self { first, mut others, mut shown, files, user, for_readers, origin, inputs, say, .. } = self;
        let budget = Budget::new(for_readers);
        let access = Access { io: files.io, origin };
        let mut snaplen = None;
        let nothing: Opener = Box::new(|_| Ok(Box::new(Counts::default()) as Box<dyn Writer>));
        let (name, open) = match first {
            // A slow pipe must not stall the other outputs, so it gets its own queue.
            First::One(plan, output)
                if output.file().is_none_or(|file| !file.regular) && (!others.is_empty() || shown.is_some()) =>
            {
                snaplen = plan.snaplen;
                others.insert(0, (plan, output));
                (String::new(), nothing)
            }
            First::One(plan, Opened::File(output)) => {
                snaplen = plan.snaplen;
                (output.name.clone(), file_opener(plan, access, output, warden)?)
            }
            First::One(plan, Opened::Readers(listener, name)) => {
                snaplen = plan.snaplen;
                let budget = budget.clone();
                let open: Opener = Box::new(move |stream| {
                    let form = FileOptions::of(&plan, access, stream).form;
                    Ok(Box::new(listener.serve(form, budget, access.is_patient())?) as Box<dyn Writer>)
                });
                (name, open)
            }
            First::Series(plan, series) => {
                snaplen = plan.snaplen;
                let opening = Opening { mode: files.mode, user, inputs, gives_up };
                (series.path.clone(), series_opener(plan, access, series, opening, accounts, say)?)
            }
            First::None => match shown.take() {
                Some(form) => {
                    let open: Opener =
                        Box::new(
                            |stream| Ok(Box::new(Shown::new(form, take(&mut stream.packets))?) as Box<dyn Writer>),
                        );
                    (String::new(), open)
                }
                None => (String::new(), nothing),
            },
        };
        Ok(Prepared { name, open, snaplen, others, shown, access, budget })
    }
}

/// Outputs whose files are empty and watched over.
struct Prepared {
    name: String,
    open: Opener,
    /// Snap length of the first output.
    snaplen: Option<u32>,
    others: Vec<(OutputPlan, Opened)>,
    shown: Option<Box<dyn Show + Send>>,
    access: Access,
    budget: Budget,
}

/// The packets to be written.
struct Stream {
    /// The first interface.
    interface: Interface,
    packets: RingPackets,
}

impl Prepared {
    /// Starts the writers, and the threads of those that have one.
    fn start(self, mut stream: Stream) -> Result<Writers> {
        let first = (self.open)(&mut stream)?;
        let others = start_others(self.others, self.access, stream, self.shown, &self.budget)?;
        Ok(if others.is_empty() && self.snaplen.is_none() {
            Writers::One(first)
        } else {
            Writers::Several(Box::new(Several::new(self.name, first, self.snaplen, others, self.access.is_patient())))
        })
    }
}

/// The writers of all outputs.
enum Writers {
    One(Box<dyn Writer>),
    Several(Box<Several>),
}

impl Writers {
    fn writer(&mut self) -> &mut dyn Writer {
        match self {
            Self::One(writer) => writer.as_mut(),
            Self::Several(several) => several.as_mut(),
        }
    }

    fn end(self) -> Vec<OutputSummary> {
        match self {
            Self::One(_) => Vec::new(),
            Self::Several(several) => several.end().into_iter().map(summary_of).collect(),
        }
    }
}

/// Opens one file for all packets of a capture, compressed if its name has such an ending.
pub fn one_file(path: &Path, attached: &mut Attached) -> Result<Box<dyn Writer>> {
    let plan = OutputPlan {
        path: path.to_owned(),
        format: Format::Pcapng,
        compression: Compression::of_name(path),
        snaplen: None,
        listen: None,
    };
    let output = Output::open(path, None, None)?;
    output.check_compression(plan.compression)?;
    let interface = attached.interfaces().first().cloned().unwrap_or_default();
    let access = Access { io: Io::Auto, origin: Origin::Live };
    let open = file_opener(plan, access, output, attached.files_warden())?;
    open(&mut Stream { interface, packets: RingPackets::default() })
}

/// A function that opens a writer once the process has given up its rights.
type Opener = Box<dyn FnOnce(&mut Stream) -> Result<Box<dyn Writer>>>;

fn file_opener(plan: OutputPlan, access: Access, mut output: Output, warden: &mut Warden) -> Result<Opener> {
    let whole = output.empty()?;
    output.keep();
    let Output { file, name, .. } = output;
    if let Some(whole) = whole.as_ref().filter(|_| access.origin.is_live()) {
        let cut: Box<dyn Undo> = Box::new(CutFile { file: warden::hold(file.as_fd())?, whole: whole.clone() });
        warden.watch([cut])?;
    }
    Ok(Box::new(move |stream| {
        Ok(FileOptions::of(&plan, access, stream).open_any(file, name, whole)? as Box<dyn Writer>)
    }))
}

/// Refuses to write to a file that packets are read from.
fn check_input(inputs: &[((u64, u64), String)], file: &File, name: &str) -> Result<()> {
    let identity = file.metadata().ok().and_then(|about| identity(&about));
    match inputs.iter().find(|(input, _)| identity == Some(*input)) {
        Some((_, input)) => Err(Error::usage(format!("cannot write to {name}"), format!("{input} is read from it"))
            .fix("write to another file")),
        None => Ok(()),
    }
}

/// Options for opening the files of a series.
struct Opening {
    mode: Option<u32>,
    user: Option<User>,
    inputs: Vec<((u64, u64), String)>,
    /// True if this process gives up its own rights later.
    gives_up: bool,
}

fn series_opener(
    plan: OutputPlan,
    access: Access,
    series: SeriesPlan,
    Opening { mode, user, inputs, gives_up }: Opening,
    accounts: Accounts,
    say: fn(&Event),
) -> Result<Opener> {
    let whole = WholeBytes::new()?;
    let make = move |path: &Path| {
        outfile::check_regular(path)?;
        let (file, _) = outfile::open(path, mode)?;
        let name = path.display().to_string();
        check_input(&inputs, &file, &name)?;
        file.set_len(0).map_err(|e| cannot_write(&name, e))?;
        Ok(file)
    };
    // A command is the user's own, and may need more rights than trawl; run as another user, it has that user's rights.
    let is_limited = user.is_some() || (gives_up && series.rotation.command.is_none());
    let kept = is_limited.then(|| KeptPrivileges {
        capabilities: match user {
            Some(_) => Capabilities::empty(),
            None => Capabilities::DAC_OVERRIDE | Capabilities::FOWNER,
        },
        user,
    });
    let make = Box::new(make);
    let files = NextFiles::start(series.clone(), make, whole.clone(), kept.as_ref())?;
    Ok(Box::new(move |stream| {
        let options = FileOptions { largest: series.largest(), ..FileOptions::of(&plan, access, stream) };
        let open = move |file: File, name: String| options.open(file, name, Some(whole.clone()));
        let report = Box::new(move |count| say(&Event::WaitsForCommands { count }));
        let series = Series::new(series, files, Box::new(open), accounts, report);
        Ok(Box::new(series) as Box<dyn Writer>)
    }))
}

/// Refuses the rotation of an output that is not a file.
pub fn refuse_rotation(rotation: &Rotation) -> Result<()> {
    let own = [
        ("-C", rotation.size.is_some()),
        ("-G", rotation.time.is_some()),
        ("-W", rotation.files.is_some()),
        ("-z", rotation.command.is_some()),
        ("--sealed", rotation.sealed),
        ("--max-disk", rotation.total.is_some()),
    ];
    match own.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            let why = "packets are not written to a file";
            Err(Error::usage(format!("cannot use {option}"), why).fix("name one: -w FILE"))
        }
        None => Ok(()),
    }
}

/// Returns the series of files that packets are written to, if one is planned. An existing file with the plain name is
/// not changed.
fn series(first: Option<&OutputPlan>, rotation: &Rotation, io: Io, by_event: bool) -> Result<Option<SeriesPlan>> {
    let is_file = |output: &&OutputPlan| {
        output.listen.is_none()
            && !is_open_already(&output.path)
            && std::fs::metadata(&output.path).map_or(true, |about| about.is_file())
    };
    let first = first.filter(is_file);
    if io == Io::Direct && !first.is_some_and(OutputPlan::can_be_direct) {
        let why = "only uncompressed pcapng files are written directly";
        return Err(Error::usage("cannot write directly", why).fix("use --io auto"));
    }
    let Some(output) = first else {
        refuse_rotation(rotation)?;
        return Ok(None);
    };
    let series = SeriesPlan {
        path: output.path.to_string_lossy().into_owned(),
        rotation: rotation.clone(),
        by_event,
        by_packets: false,
    };
    if series.is_asked_for() && output.path.to_str().is_none() {
        let what = format!("cannot write a series of files to {}", output.path.display());
        return Err(Error::usage(what, "the name is not UTF-8").fix("choose a name in UTF-8"));
    }
    Ok(Some(series).filter(SeriesPlan::is_asked_for))
}

/// Starts the writers of the outputs after the first, and the one that shows packets.
fn start_others(
    opened: Vec<(OutputPlan, Opened)>,
    access: Access,
    stream: Stream,
    shown: Option<Box<dyn Show + Send>>,
    budget: &Budget,
) -> Result<Vec<ThreadedOutput>> {
    let mut all = Vec::new();
    for (plan, output) in opened {
        let options = FileOptions::of(&plan, access, &stream);
        let (name, writer): (String, Box<dyn Writer + Send>) = match output {
            Opened::File(mut output) => {
                let whole = output.empty()?;
                output.keep();
                let Output { file, name, .. } = output;
                (name.clone(), options.open_any(file, name, whole)?)
            }
            Opened::Readers(listener, name) => {
                (name, Box::new(listener.serve(options.form, budget.clone(), access.is_patient())?))
            }
        };
        all.push(ThreadedOutput::start(name, writer, plan.snaplen, access.is_patient())?);
    }
    if let Some(form) = shown {
        let shown = Box::new(Shown::new(form, stream.packets)?);
        all.push(ThreadedOutput::start("standard output".to_owned(), shown, None, access.is_patient())?);
    }
    Ok(all)
}

fn summary_of(fate: OutputFate) -> OutputSummary {
    OutputSummary {
        name: fate.name,
        recorded: fate.recorded,
        not_kept: fate.not_kept,
        lost: fate.lost,
        failed: fate.failed,
        error: fate.error.map(|error| error.to_string()),
        too_few_cpus: fate.compresses_too_slowly.then(compression_threads),
    }
}

/// Mode of access to the files, and origin of the written blocks.
#[derive(Clone, Copy, Debug)]
struct Access {
    io: Io,
    origin: Origin,
}

impl Access {
    /// Returns true if a slow output holds the source back.
    fn is_patient(self) -> bool {
        !self.origin.is_live()
    }
}

/// Options for writing a file.
#[derive(Clone, Copy, Debug)]
struct FileOptions {
    form: OutputForm,
    access: Access,
    compression: Option<Compression>,
    /// Maximum size of a file, if known.
    largest: Option<u64>,
}

impl FileOptions {
    fn of(output: &OutputPlan, access: Access, stream: &Stream) -> Self {
        let first = &stream.interface;
        let form = match output.format {
            _ if access.origin == Origin::FilesAsStored => OutputForm::Encoded,
            Format::Pcapng => OutputForm::Pcapng,
            Format::Pcap => {
                OutputForm::Pcap { link_type: first.link_type, snaplen: output.snaplen.unwrap_or(first.snaplen) }
            }
        };
        Self { form, access, compression: output.compression, largest: None }
    }

    /// Opens the writer of a file, whose committed length is in `whole`, or of a pipe or terminal, which has none.
    fn open_any(self, file: File, name: String, whole: Option<WholeBytes>) -> Result<Box<dyn Writer + Send>> {
        Ok(match whole {
            Some(whole) => self.open(file, name, Some(whole))?,
            None => Box::new(Pipe::new(file, name, self.form)),
        })
    }

    /// Opens the writer of an empty file, directly if requested or if its file system supports it.
    fn open(self, file: File, name: String, whole: Option<WholeBytes>) -> Result<Box<dyn FileWriter>> {
        // Packets of files can be written again: their output need not survive a crash, and is not cut after its last
        // block.
        let whole = whole.filter(|_| self.access.origin.is_live());
        if let Some(compression) = self.compression {
            let packed = Packed::new(file, name, whole, compression, self.form)?;
            return Ok(Box::new(packed.in_series(self.is_in_series())));
        }
        if matches!(self.form, OutputForm::Pcapng) && self.access.io != Io::Buffered {
            let again = file.try_clone().map_err(|e| cannot_write(&name, e))?;
            match DirectFile::new(again, name.clone(), whole.clone()) {
                Ok(direct) => return Ok(Box::new(direct.up_to(self.largest))),
                Err(error) if self.access.io == Io::Direct => return Err(no_direct_writes(&name, error)),
                // Reported before the capture began.
                Err(_) => {}
            }
        }
        let file = PlainFile::new(file, name, whole, self.form);
        Ok(Box::new(file.in_series(self.is_in_series())))
    }

    fn is_in_series(&self) -> bool {
        self.largest.is_some()
    }
}

fn no_direct_writes(name: &str, error: io::Error) -> Error {
    let what = format!("cannot write directly to {name}");
    Error::os(what, error).fix("use --io auto or --io buffered")
}

/// Explains under -v why a file is written through the page cache; fails if that is not allowed. `direct` opens it past
/// the page cache, if it exists already.
fn check_io<T>(
    output: &OutputPlan,
    io: Io,
    direct: impl FnOnce() -> Option<io::Result<T>>,
    observer: &mut dyn Observer,
) -> Result<()> {
    if io == Io::Buffered {
        return Ok(());
    }
    let name = output.path.display().to_string();
    let why = if output.can_be_direct() {
        match direct() {
            None | Some(Ok(_)) => return Ok(()),
            Some(Err(error)) if io == Io::Direct => return Err(no_direct_writes(&name, error)),
            Some(Err(error)) => format!("its file system does not support direct writes ({error})"),
        }
    } else {
        "only uncompressed pcapng files are written directly".to_owned()
    };
    observer.detail(&Event::NotDirect { output: name, why });
    Ok(())
}

/// Creates a temporary file in the directory of a series; `None` if that is not possible yet.
fn temporary_file(output: &OutputPlan) -> Option<File> {
    let directory = match output.path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    create::unnamed_in(directory).ok()
}
