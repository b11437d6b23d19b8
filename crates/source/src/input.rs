//! An input file: opened, decompressed if it is compressed, and followed while it grows.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trawl_filter::select::PacketKind;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::read::compressed::{self, Compression};
use trawl_packet::read::{CaptureReader, ReadError, Step};
use trawl_packet::seekable::{Parts, Seekable};
use trawl_sys::events::{self, Signal, Signals};
use trawl_sys::files::changes::Changes;
use trawl_sys::{Error, Result};
use trawl_view::record::{PacketSource, PacketView};

use crate::{Notice, OnNotice};

/// Shortest and longest time until a file that does not grow is checked again. The kernel announces changes, but not those
/// that another machine makes.
const PAUSE: Duration = Duration::from_millis(50);
const LONG_PAUSE: Duration = Duration::from_secs(1);

type Reader = CaptureReader<'static>;

/// A function that returns the wanted span, its begin and end in nanoseconds since 1970, from the time of a file's
/// first packet.
pub type Span<'a> = &'a dyn Fn(u64) -> (u64, u64);

#[derive(Debug)]
pub struct Input {
    pub reader: Reader,
    pub name: String,
    pub compression: Compression,
    /// The file or pipe itself, for comparison with the output file.
    pub identity: Option<(u64, u64)>,
    following: Option<Following>,
    on_notice: OnNotice,
}

/// State of a file that is followed.
#[derive(Debug)]
struct Following {
    path: PathBuf,
    /// The current file, at its read offset: it may have lost its name.
    file: Option<File>,
    ring: Option<Ring>,
    /// Changes of the file's directory.
    changes: Option<Changes>,
    /// Set once the next file exists. The current file is then read to its end once more: its writer may have written
    /// between the last read and the beginning of the next file.
    ends: bool,
    /// Set once its removal or truncation was reported.
    reported: bool,
}

/// A ring of files: all in this directory, or those whose names differ from the first one's by digits only.
#[derive(Debug)]
struct Ring {
    directory: PathBuf,
    name_without_digits: Option<String>,
}

impl Input {
    /// Opens a file. If the file has a table of its frames, only the frames in the span are read.
    pub fn open(path: &Path, signals: Option<&Signals>, span: Option<Span<'_>>, on_notice: OnNotice) -> Result<Self> {
        let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let os = |e| Error::os(format!("cannot read {name}"), e);
        // A pipe grows until its writer closes it.
        let is_pipe = path == Path::new("-") && !stdin_is_file();
        let Some(signals) = signals.filter(|_| !is_pipe) else {
            let file = open(path).map_err(os)?;
            let metadata = file.metadata().map_err(os)?;
            if metadata.is_dir() {
                return Err(unreadable(&name, "it is a directory").fix("to read a ring of files in it, use -f"));
            }
            let opened = Arc::new(AtomicBool::new(false));
            let parts = match span.filter(|_| metadata.is_file()) {
                Some(span) => parts(&file, span).map_err(|e| unreadable(&name, e))?,
                None => None,
            };
            let source: Box<dyn Read + Send> = if let Some(parts) = parts {
                Box::new(parts)
            } else if metadata.is_file() {
                Box::new(file)
            } else {
                let pauses = Arc::clone(&opened);
                Box::new(Pipe { file, pauses, reported: false })
            };
            let (reader, compression) = reader(source).map_err(|e| unreadable(&name, e))?;
            opened.store(true, Ordering::Relaxed);
            let identity = Some(identity(&metadata));
            return Ok(Self { reader, name, compression, identity, following: None, on_notice });
        };
        let is_dir = open(path).and_then(|file| file.metadata()).map_err(os)?.is_dir();
        let mut following = Following {
            path: path.to_owned(),
            file: None,
            ring: (path != Path::new("-")).then(|| Ring {
                directory: match path.parent() {
                    _ if is_dir => path.to_owned(),
                    Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                    _ => PathBuf::from("."),
                },
                name_without_digits: (!is_dir).then(|| without_digits(path)),
            }),
            changes: None,
            ends: false,
            reported: false,
        };
        following.changes = following.ring.as_ref().and_then(|ring| Changes::watch(&ring.directory).ok());
        loop {
            if is_dir {
                match following.oldest() {
                    Some(oldest) => following.path = oldest,
                    None if following.pause(signals) => continue,
                    None => return Err(unreadable(&name, "it holds no files")),
                }
            }
            match following.open() {
                Ok((reader, identity)) => {
                    return Ok(Self {
                        reader,
                        name,
                        compression: Compression::None,
                        identity: Some(identity),
                        following: Some(following),
                        on_notice,
                    });
                }
                // The writer has not completed the header.
                Err(error) if has_partial_header(&error) && following.pause(signals) => {}
                Err(error) => return Err(unreadable(&name, error)),
            }
        }
    }

    /// Reports that the rest of the input cannot be read.
    pub fn report_unreadable(&self, error: &ReadError) {
        (self.on_notice)(&Notice::CannotRead { file: self.name.clone(), error: error.to_string() });
    }

    /// Warns about packets whose times are wrong in the file or cannot be shown.
    pub fn report_flawed_times(&self) {
        let packets = self.reader.times_beyond();
        if packets > 0 {
            (self.on_notice)(&Notice::TimesBeyond { file: self.name.clone(), packets });
        }
        let packets = self.reader.fractions_too_large();
        if packets > 0 {
            (self.on_notice)(&Notice::LargeFractions { file: self.name.clone(), packets });
        }
    }

    /// Returns the link type of the first interface, and the file's byte order.
    pub fn first_kind(&self) -> PacketKind {
        let first = self.reader.interfaces().first();
        let link_type = first.map_or(LINKTYPE_ETHERNET, |interface| interface.link_type);
        (link_type, self.reader.byte_order())
    }

    /// Returns the link type of the current packet, and its file's byte order.
    pub fn kind(&self) -> Option<PacketKind> {
        let (_, interface) = self.reader.time_and_interface()?;
        let link_type = self.reader.interfaces().get(interface)?.link_type;
        Some((link_type, self.reader.byte_order()))
    }

    /// Waits while no data is available; returns false if a signal ends the command.
    pub fn wait(&mut self, signals: Option<&Signals>) -> bool {
        let (Some(following), Some(signals)) = (&mut self.following, signals) else {
            return true;
        };
        let next = if following.is_cut() {
            following.report(self.on_notice, |file| Notice::Truncated { file });
            Some(following.path.clone())
        } else {
            match following.successor() {
                Some(_) if !following.ends => {
                    following.ends = true;
                    return true;
                }
                next => next,
            }
        };
        if let Some(next) = next {
            let before = std::mem::replace(&mut following.path, next);
            match following.open() {
                Ok((reader, identity)) => {
                    self.reader = reader;
                    self.identity = Some(identity);
                    return true;
                }
                // Retried when the file is longer.
                Err(_) => following.path = before,
            }
        }
        if following.is_removed() {
            following.report(self.on_notice, |file| Notice::Removed { file });
        }
        following.pause(signals)
    }
}

impl PacketSource for Input {
    fn advance(&mut self) -> Result<bool, ReadError> {
        self.reader.advance()
    }

    fn current(&self) -> Option<PacketView<'_>> {
        PacketSource::current(&self.reader)
    }

    fn time_ns(&self) -> u64 {
        PacketSource::time_ns(&self.reader)
    }

    fn step(&mut self) -> Result<Option<Step>, ReadError> {
        match self.reader.step()? {
            None if self.following.is_some() => {
                Err(ReadError::Io { offset: 0, source: io::ErrorKind::WouldBlock.into() })
            }
            step => Ok(step),
        }
    }
}

impl Following {
    fn open(&mut self) -> Result<(Reader, (u64, u64)), ReadError> {
        let unread = |source| ReadError::Io { offset: 0, source };
        let mut file = open(&self.path).map_err(unread)?;
        file.rewind().map_err(unread)?;
        let identity = identity(&file.metadata().map_err(unread)?);
        let (mut reader, compression) = reader(Box::new(file.try_clone().map_err(unread)?))?;
        // A compressed file cannot be continued from its end: only whole files of a ring are read.
        if compression == Compression::None {
            file.rewind().map_err(unread)?;
            let growing = Growing(file.try_clone().map_err(unread)?);
            reader = CaptureReader::new(growing)?;
        }
        self.file = Some(file);
        (self.ends, self.reported) = (false, false);
        Ok((reader, identity))
    }

    /// Returns the files of the ring, the oldest write first.
    fn files(&self) -> Vec<RingFile> {
        let Some(ring) = &self.ring else {
            return Vec::new();
        };
        let entries = std::fs::read_dir(&ring.directory).into_iter().flatten();
        let mut files: Vec<_> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| ring.name_without_digits.as_ref().is_none_or(|name| *name == without_digits(path)))
            .filter_map(|path| {
                let metadata = std::fs::metadata(&path).ok()?;
                let is_begun = metadata.is_file() && metadata.len() > 0;
                is_begun.then(|| RingFile::new(&metadata, path))
            })
            .collect();
        files.sort();
        files
    }

    fn oldest(&self) -> Option<PathBuf> {
        self.files().into_iter().next().map(|file| file.path)
    }

    /// Returns the file written to next after this one, which may be removed already.
    fn successor(&self) -> Option<PathBuf> {
        let metadata = self.file.as_ref()?.metadata().ok()?;
        let own = identity(&metadata);
        let this = RingFile::new(&metadata, self.path.clone());
        let mut later = self.files().into_iter();
        later.find(|file| file.identity != own && *file > this).map(|file| file.path)
    }

    /// Returns true if the file was truncated below the read offset.
    fn is_cut(&self) -> bool {
        let Some(mut file) = self.file.as_ref() else {
            return false;
        };
        let length = file.metadata().map(|about| about.len());
        matches!((length, file.stream_position()), (Ok(length), Ok(at)) if length < at)
    }

    fn is_removed(&self) -> bool {
        let about = self.file.as_ref().and_then(|file| file.metadata().ok());
        about.is_some_and(|about| about.nlink() == 0)
    }

    /// Pauses until the file may have changed; returns false if a signal asks to end.
    fn pause(&self, signals: &Signals) -> bool {
        let mut waited = events::wait(&[signals.as_fd()], PAUSE);
        if let Some(changes) = &self.changes
            && waited.is_ok()
            && !events::is_readable(signals.as_fd())
        {
            waited = events::wait(&[signals.as_fd(), changes.as_fd()], LONG_PAUSE);
            changes.clear();
        }
        let ends = |signal| signal != Signal::Report;
        waited.is_ok() && !signals.next().is_some_and(ends)
    }

    /// Reports once what happened to the current file.
    fn report(&mut self, on_notice: OnNotice, what: impl Fn(String) -> Notice) {
        if !std::mem::replace(&mut self.reported, true) {
            on_notice(&what(self.path.display().to_string()));
        }
    }
}

/// A file of a ring, ordered by the time of its last write.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RingFile {
    seconds: i64,
    nanoseconds: i64,
    path: PathBuf,
    identity: (u64, u64),
}

impl RingFile {
    fn new(metadata: &Metadata, path: PathBuf) -> Self {
        Self { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec(), path, identity: identity(metadata) }
    }
}

/// Returns true if the only input is a pipe on standard input.
pub fn is_a_pipe(files: &[PathBuf]) -> bool {
    files == [Path::new("-")] && !stdin_is_file()
}

fn stdin_is_file() -> bool {
    let about = open(Path::new("-")).and_then(|file| file.metadata());
    about.is_ok_and(|about| about.is_file())
}

/// Returns true if a file ends before its header does.
fn has_partial_header(error: &ReadError) -> bool {
    matches!(error, ReadError::Empty | ReadError::Truncated { .. }) || error.would_block()
}

fn without_digits(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn open(path: &Path) -> io::Result<File> {
    if path == Path::new("-") {
        return Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    }
    File::open(path)
}

pub fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn reader(source: Box<dyn Read + Send>) -> Result<(Reader, Compression), ReadError> {
    let unread = |source| ReadError::Io { offset: 0, source };
    let (source, compression) = compressed::open(source).map_err(unread)?;
    Ok((CaptureReader::new(source)?, compression))
}

/// Returns the parts of a file that a span of time needs; `None` if it has no table of frames, or its frames cannot be
/// distinguished.
fn parts(file: &File, span: Span<'_>) -> io::Result<Option<Parts<File>>> {
    let parts = match Seekable::open(file.try_clone()?)? {
        // Reading the whole file will report the damage.
        Some(seekable) => seekable.between(span).unwrap_or(None),
        None => None,
    };
    if parts.is_none() {
        (&*file).rewind()?;
    }
    Ok(parts)
}

/// A pipe, on which each read may block. It returns `WouldBlock` once before each read, so that the packets so far are
/// shown first.
struct Pipe {
    file: File,
    /// False while the file's header is read.
    pauses: Arc<AtomicBool>,
    reported: bool,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reported = !self.reported && self.pauses.load(Ordering::Relaxed);
        if self.reported {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.file.read(buffer)
    }
}

/// A file that may grow beyond its end.
struct Growing(File);

impl Read for Growing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 if !buffer.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

/// Makes the error about a file that cannot be read.
fn unreadable(name: &str, why: impl std::fmt::Display) -> Error {
    Error::failed(format!("cannot read {name}"), why)
}
