//! Records the packets of the connections with a verdict. Which ones these are is known at the end alone, so that all
//! packets are kept in a file without a name until then.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use trawl_packet::pcapng::note::keys::SLOW;
use trawl_packet::pcapng::write;
use trawl_packet::read::Step;
use trawl_packet::walk::walk;
use trawl_source::{Input, OnNotice};
use trawl_sys::files::create;
use trawl_sys::{Error, Result};
use trawl_view::merge::Merge;
use trawl_view::record::PacketSource;

/// The connections with a verdict, and its text.
#[derive(Clone, Debug, Default)]
pub struct Culprits {
    connections: HashMap<(SocketAddr, SocketAddr), String>,
    /// Name servers.
    servers: HashMap<SocketAddr, String>,
}

impl Culprits {
    pub(super) fn add(&mut self, one: SocketAddr, other: SocketAddr, text: &str) {
        append(self.connections.entry(pair(one, other)).or_default(), text);
    }

    pub(super) fn add_server(&mut self, server: SocketAddr, text: &str) {
        append(self.servers.entry(server).or_default(), text);
    }

    fn of(&self, one: SocketAddr, other: SocketAddr) -> Option<&str> {
        let of_connection = self.connections.get(&pair(one, other));
        let found = of_connection.or_else(|| self.servers.get(&one)).or_else(|| self.servers.get(&other));
        found.map(String::as_str)
    }
}

/// Appends a verdict, unless the other end has the same.
fn append(text: &mut String, more: &str) {
    if text.is_empty() {
        more.clone_into(text);
    } else if !text.contains(more) {
        *text += "; ";
        *text += more;
    }
}

fn pair(one: SocketAddr, other: SocketAddr) -> (SocketAddr, SocketAddr) {
    (one.min(other), one.max(other))
}

/// A recording that has no name yet.
#[derive(Debug)]
pub struct Draft {
    all: File,
    kept: File,
    path: PathBuf,
}

impl Draft {
    pub fn begin(path: &Path) -> Result<Self> {
        let fail = |e| Error::os(format!("cannot write {}", path.display()), e);
        let directory = path.parent().filter(|one| !one.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let unnamed = || create::unnamed_in(directory).map_err(fail);
        Ok(Self { all: unnamed()?, kept: unnamed()?, path: path.to_owned() })
    }

    /// Returns the path to which all packets are to be written.
    pub fn all(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.all.as_raw_fd()))
    }

    /// Keeps the packets of these connections, with their verdict as a comment of the first one, and gives the file its
    /// name. Returns the number of packets.
    pub fn finish(self, culprits: &Culprits, tell: OnNotice) -> Result<u64> {
        let fail = |e| Error::os(format!("cannot write {}", self.path.display()), e);
        let input = Input::open(&self.all(), None, None, tell)?;
        let mut out = BufWriter::new(&self.kept);
        let (mut packets, mut noted, mut block) = (0, HashSet::new(), Vec::new());
        let mut sources = Merge::new(vec![input]);
        loop {
            let step = sources.step();
            let Some(input) = sources.source() else { break };
            match step {
                Ok(Some(Step::Packet)) => {
                    let ends = PacketSource::current(input).and_then(|packet| {
                        let headers = walk(packet.link_type, packet.captured);
                        let (ip, (from, to)) = (headers.ip?, headers.ports?);
                        let of = |ip: IpAddr, port| SocketAddr::new(ip.to_canonical(), port);
                        Some((of(ip.src, from), of(ip.dst, to)))
                    });
                    let Some((text, (one, other))) = ends.and_then(|(a, b)| Some((culprits.of(a, b)?, pair(a, b))))
                    else {
                        continue;
                    };
                    packets += 1;
                    block.clear();
                    match noted.insert((one, other)) {
                        true => {
                            let text = format!("{}{text}", SLOW.begin);
                            write::with_comment(&mut block, input.reader.raw(), &text, None);
                        }
                        false => block.extend_from_slice(input.reader.raw()),
                    }
                    out.write_all(&block).map_err(fail)?;
                }
                Ok(Some(Step::Block { .. })) => out.write_all(input.reader.raw()).map_err(fail)?,
                Ok(None) => break,
                Err(error) => return Err(Error::failed(format!("cannot write {}", self.path.display()), error)),
            }
        }
        out.flush().map_err(fail)?;
        drop(out);
        create::name(&self.kept, &self.path).map_err(fail)?;
        Ok(packets)
    }
}
