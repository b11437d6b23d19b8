//! `trawl bench report`: a page, pictures or Markdown of the results of `trawl bench run`.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use trawl_front::terminal;
use trawl_sys::{Error, Result};

use super::{Source, markdown, page, svg};
use crate::results;

/// Writes one page, for use offline, with the results of `trawl bench run`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directories of results, or JSON files
    #[arg(value_name = "DIR", required = true)]
    results: Vec<PathBuf>,
    /// The file to write the page to
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Compare with the first of several results, and mark changes greater than the spread
    #[arg(long)]
    compare: bool,
    /// Also write the page as a PNG picture to this file (requires chromium)
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    /// Also write the plots as SVG to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also write the report as Markdown to this file; - for standard output
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Serve the page on loopback until interrupted; it is updated while a run goes on
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "0", conflicts_with_all = ["png", "svg", "markdown"])]
    serve: Option<u16>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    if args.compare && args.results.len() < 2 {
        return Err(Error::usage("--compare", "it needs the results of two runs or more"));
    }
    if let Some(port) = args.serve {
        return serve(args, port);
    }
    let sources = load(&args.results)?;
    if let Some(path) = &args.markdown {
        let text = markdown(&sources);
        if path == Path::new("-") {
            terminal::write_out(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
        results::replace(path, text.as_bytes())?;
    }
    results::replace(&args.output, page(&sources, args.compare, false).as_bytes())?;
    terminal::say(&format!("wrote {}", args.output.display()));
    if let Some(png) = &args.png {
        screenshot(&args.output, png)?;
        terminal::say(&format!("wrote {}", png.display()));
    }
    if let Some(path) = &args.svg {
        let picture = svg(&sources).map_err(|why| Error::failed(format!("cannot draw {}", path.display()), why))?;
        results::replace(path, picture.as_bytes())?;
        terminal::say(&format!("wrote {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn load(results: &[PathBuf]) -> Result<Vec<Source>> {
    let one = |path: &PathBuf| {
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        Ok(Source { name, report: results::load(path)? })
    };
    results.iter().map(one).collect()
}

fn screenshot(page: &Path, png: &Path) -> Result<()> {
    let what = || format!("cannot make {}", png.display());
    let fail = |e| Error::os(what(), e);
    let page = std::fs::canonicalize(page).map_err(fail)?;
    let output = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,2400"])
        .arg(format!("--screenshot={}", png.display()))
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(
                Error::failed(what(), "chromium draws it, and is not installed").fix("apt-get install chromium")
            );
        }
        Err(e) => return Err(fail(e)),
    };
    if output.status.success() && png.is_file() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::failed(what(), said.lines().last().unwrap_or("chromium failed")))
}

/// Answers every request with the current page.
fn serve(args: &Args, port: u16) -> Result<ExitCode> {
    load(&args.results)?;
    let fail = |e| Error::os(format!("cannot listen on port {port} of 127.0.0.1"), e);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    terminal::say(&format!("http://{address}/ shows the report; an interrupt ends it"));
    for stream in listener.incoming().flatten() {
        // A reader that closes early does not end the command.
        let _ = answer(stream, args);
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(mut stream: TcpStream, args: &Args) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines().map_while(std::io::Result::ok).take(100);
    let request = lines.next().unwrap_or_default();
    // The rest of the request is read so that a reset does not cut off the answer.
    while lines.next().is_some_and(|line| !line.trim().is_empty()) {}
    let (status, kind, body) = match request.split(' ').nth(1) {
        Some("/") => match load(&args.results) {
            Ok(sources) => {
                let is_live = sources.iter().any(|one| !one.report.complete);
                ("200 OK", "text/html; charset=utf-8", page(&sources, args.compare, is_live))
            }
            Err(why) => ("503 Service Unavailable", "text/plain", format!("{why}\n")),
        },
        _ => ("404 Not Found", "text/plain", "the only page is /\n".to_owned()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body.as_bytes())
}
