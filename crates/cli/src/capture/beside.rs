//! The outputs beside the first: further files, each with its own snap length, format and compression, and lines.

use std::path::{Path, PathBuf};

use trawl_kernel::{Error, Result};
use trawl_sink::Beside;
use trawl_tap::notice::Notice;
use trawl_tap::session::{Observer, Session};
use trawl_view::print::Printer;

use clap::ValueEnum;

use super::args::{self, Args, Format};
use super::how::{self, How};
use super::output::{self, Output};
use super::places;
use super::progress::Terminal;
use super::shown::Shown;
use crate::packing::Packing;

/// One `-w`: a path, and after commas what is particular to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) path: PathBuf,
    pub(super) snaplen: Option<u32>,
    pub(super) format: Option<Format>,
    pub(super) compress: Option<Packing>,
}

impl Wanted {
    /// What does not look like an option belongs to the name.
    pub(super) fn parse(text: &Path) -> Result<Self> {
        let mut wanted = Self::default();
        let Some(mut rest) = text.to_str().map(str::to_owned) else {
            wanted.path = text.to_owned();
            return Ok(wanted);
        };
        let refused = |why| Error::usage(format!("cannot write to {}", text.display()), why);
        let not_among = |name: &str, all| refused(format!("'{name}' is not among {all}"));
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        while let Some((front, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                Some(("snaplen", value)) => {
                    let length = value
                        .parse()
                        .map_err(|_| refused(format!("'{value}' is not a number of bytes")))?;
                    wanted.snaplen = Some(args::snaplen(length)?);
                }
                Some(("compress", name)) => {
                    let packing = Packing::from_str(name, false)
                        .map_err(|_| not_among(name, "none, zstd, lz4, gzip"))?;
                    wanted.compress = Some(packing);
                }
                Some(("format", "pcap")) => wanted.format = Some(Format::Pcap),
                Some(("format", "pcapng")) => wanted.format = Some(Format::Pcapng),
                Some(("format", name)) => return Err(not_among(name, "pcap, pcapng")),
                Some((name, value)) if is_word(name) && is_word(value) => {
                    return Err(not_among(name, "snaplen, format, compress"));
                }
                _ => break,
            }
            rest = front.to_owned();
        }
        if rest.is_empty() {
            let what = format!("cannot write to '{}'", text.display());
            return Err(Error::usage(what, "no file is named").fix("-w FILE,snaplen=N"));
        }
        wanted.path = PathBuf::from(rest);
        Ok(wanted)
    }
}

/// What is written to, opened before anything is attached: a named pipe makes trawl wait for its reader.
#[derive(Default)]
pub(super) struct Outputs {
    pub(super) account: Option<Output>,
    /// Not where packets go to a series of files.
    pub(super) first: Option<Output>,
    pub(super) others: Vec<(Wanted, Output)>,
}

impl Outputs {
    pub(super) fn open(args: &Args, is_series: bool, observer: &mut Terminal) -> Result<Self> {
        let mut all = Self::default();
        match all.open_all(args, is_series, observer) {
            Ok(()) => Ok(all),
            Err(error) => {
                all.discard();
                Err(error)
            }
        }
    }

    fn open_all(&mut self, args: &Args, is_series: bool, observer: &mut Terminal) -> Result<()> {
        let mut open = |wanted: &Wanted| {
            if output::is_named_pipe(&wanted.path) {
                let output = wanted.path.display().to_string();
                observer.notice(&Notice::WaitsForReader { output });
            }
            let output = Output::open(&wanted.path, args)?;
            let compression = args.recording.compression(&wanted.path, wanted.compress);
            match output.check_compression(compression) {
                Ok(()) => Ok(output),
                Err(error) => {
                    output.discard();
                    Err(error)
                }
            }
        };
        let account = args.summary.as_deref();
        self.account = account.map(|path| Output::open(path, args)).transpose()?;
        if !is_series && !args.write.is_empty() {
            self.first = Some(open(&args.first)?);
        }
        for wanted in &args.others {
            self.others.push((wanted.clone(), open(wanted)?));
        }
        self.check_apart(args.recording.print)
    }

    /// Refuses two outputs to one place, where each would destroy what the other writes.
    fn check_apart(&self, prints: bool) -> Result<()> {
        let others = self.others.iter().map(|(_, output)| output);
        let mut known: Vec<(u64, u64)> = Vec::new();
        if prints {
            known.extend(output::place_of_stdout());
        }
        for output in self.first.iter().chain(others) {
            let Some(place) = output.place() else {
                continue;
            };
            if known.contains(&place) {
                let what = format!("cannot write to {} as well", output.name);
                let why = "another output goes there";
                return Err(Error::usage(what, why).fix("name another file"));
            }
            known.push(place);
        }
        Ok(())
    }

    /// Says how files are written, and fails where it cannot be as asked for.
    pub(super) fn check_io(
        &self,
        args: &Args,
        is_series: bool,
        observer: &mut Terminal,
    ) -> Result<()> {
        if is_series {
            how::check_io(&args.first, None, args, observer)?;
        }
        let first = self.first.iter().map(|output| (&args.first, output));
        let others = self.others.iter().map(|(wanted, output)| (wanted, output));
        for (wanted, output) in first.chain(others).filter(|(_, output)| output.regular) {
            how::check_io(wanted, Some(&output.file), args, observer)?;
        }
        Ok(())
    }

    /// Nothing was captured: files made for it are not left behind.
    pub(super) fn discard(&self) {
        let others = self.others.iter().map(|(_, output)| output);
        let all = self.account.iter().chain(&self.first).chain(others);
        all.for_each(Output::discard);
    }
}

/// Starts what writes to them.
pub(super) fn start(
    opened: Vec<(Wanted, Output)>,
    session: &Session,
    args: &Args,
) -> Result<Vec<Beside>> {
    let mut all = Vec::new();
    for (wanted, output) in opened {
        let whole = output.start()?;
        let how = How::of(&wanted, args, session);
        let name = output.name.clone();
        let sink = how.open_any(output.file, output.name, whole)?;
        all.push(Beside::start(name, sink, wanted.snaplen)?);
    }
    if args.recording.print && !args.write.is_empty() {
        let printer = Printer::new(args.lines.options(false));
        let shown = Shown::new(printer, places(session))?;
        all.push(Beside::start(
            "standard output".to_owned(),
            Box::new(shown),
            None,
        )?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_commas_and_options_may_not_be_mistaken() {
        let parse = |text: &str| Wanted::parse(Path::new(text));
        for name in ["a,b.pcapng", "a,host=web.pcapng", "a,b=/c", "a=b,c.pcap"] {
            assert_eq!(parse(name).expect("a name").path, Path::new(name));
        }
        let wanted = parse("a,b.pcapng,snaplen=64,format=pcap").expect("options");
        assert_eq!(wanted.path, Path::new("a,b.pcapng"));
        assert_eq!(wanted.snaplen, Some(64));
        for text in [
            "a,snap=64",
            "a,compress=zstd,foo=1",
            "a,foo=1,snaplen=64",
            "a,format=",
        ] {
            parse(text).expect_err(text);
        }
    }
}
