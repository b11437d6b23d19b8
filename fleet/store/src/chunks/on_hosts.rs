//! Chunks that stay on their hosts: a host answers questions for parts of them, and a query asks.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object_store::GetRange;
use serde::{Deserialize, Serialize};
use trawl_spool::Target;
use trawl_spool::key::Object;
use trawl_spool::spool::{CHUNK, TARGET, chunk_name};
use trawl_sys::files::beneath;

use crate::object::remote::Failure;

/// Maximum number of bytes of an answer: a message of NATS has at most 1 MiB.
pub const PIECE: u64 = 512 << 10;

/// A question for a part of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Key of the chunk's packets.
    pub chunk: String,
    #[serde(flatten)]
    pub part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    From(u64, u64),
    Last(u64),
}

/// First bytes of an answer, one for each kind; the part of the chunk or the error follows.
const FOUND: u8 = 0;
const GONE: u8 = 1;
const FAILED: u8 = 2;

/// Answers a question from the chunks of a spool.
pub fn answer(spool: &Path, question: &[u8]) -> Vec<u8> {
    let parsed = serde_json::from_slice::<Question>(question);
    let read = parsed.map_err(io::Error::other).and_then(|question| part_of(spool, &question));
    match read {
        Ok(mut bytes) => {
            bytes.insert(0, FOUND);
            bytes
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => vec![GONE],
        Err(error) => [&[FAILED], error.to_string().as_bytes()].concat(),
    }
}

fn part_of(spool: &Path, question: &Question) -> io::Result<Vec<u8>> {
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
    let Object::Packets(chunk) = Object::of(&question.chunk) else {
        return Err(wrong("it is not the key of a chunk"));
    };
    let run = spool.join(chunk.run().replace('/', "~"));
    let target: Target = serde_json::from_slice(&beneath::read(&run, Path::new(TARGET))?)?;
    if !target.is_near() {
        return Err(wrong("the chunks of this run do not stay here"));
    }
    let file = beneath::open(&run, &chunk_name(chunk.sequence(), CHUNK))?;
    let range = range_in(&file, question.part)?;
    let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}

/// Returns the range of a part, as far as the file has it, and at most one piece long.
fn range_in(file: &File, part: Part) -> io::Result<Range<u64>> {
    let length = file.metadata()?.len();
    let (from, to) = match part {
        Part::From(from, to) => (from.min(length), to.min(length)),
        Part::Last(count) => (length.saturating_sub(count.min(PIECE)), length),
    };
    Ok(from..to.clamp(from, from + PIECE))
}

/// A connection to hosts that answer questions.
pub trait Hosts {
    fn ask(&mut self, host: &str, question: &[u8]) -> Result<Vec<u8>, String>;
}

/// Returns a part of a chunk that stays on a host.
pub fn get_range(hosts: &mut dyn Hosts, host: &str, chunk: &str, range: &GetRange) -> Result<Vec<u8>, Failure> {
    let mut ask = |part| {
        let question = Question { chunk: chunk.to_owned(), part };
        let question = serde_json::to_vec(&question).unwrap_or_default();
        let answer = hosts.ask(host, &question).map_err(Failure::Other)?;
        match answer.split_first() {
            Some((&FOUND, bytes)) => Ok(bytes.to_vec()),
            Some((&GONE, _)) => Err(Failure::NotFound),
            Some((_, why)) => Err(Failure::Other(String::from_utf8_lossy(why).into_owned())),
            None => Err(Failure::Other("the answer is empty".to_owned())),
        }
    };
    let (from, to) = match range {
        GetRange::Suffix(count) => return ask(Part::Last(*count)),
        GetRange::Offset(from) => (*from, u64::MAX),
        GetRange::Bounded(range) => (range.start, range.end),
    };
    let mut bytes = Vec::new();
    let mut next = from;
    while next < to {
        let last = to.min(next + PIECE);
        let piece = ask(Part::From(next, last))?;
        if piece.is_empty() {
            break;
        }
        if piece.len() as u64 > last - next {
            return Err(Failure::Other("the answer is too long".to_owned()));
        }
        next += piece.len() as u64;
        bytes.extend(piece);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_chunks_are_answered() {
        let spool = std::env::temp_dir().join(format!("trawl-near-{}", std::process::id()));
        let run = spool.join("c~h~b~1");
        std::fs::create_dir_all(run.join("chunks")).unwrap();
        std::fs::write(run.join(chunk_name(7, CHUNK)), b"0123456789").unwrap();
        let target = |packets: &str| {
            let text = format!(
                "{{\"url\":\"s\",\"capture\":\"c\",\"host\":\"h\",\"boot\":\"b\",\"epoch\":\"1\",\"packets\":\"{packets}\"}}"
            );
            std::fs::write(run.join(TARGET), text).unwrap();
        };
        let key = |number: u32| format!("chunks/2026-11-28/02/c/h/b/1/{number:010}.pcapng.zst");
        struct Here<'a>(&'a Path);
        impl Hosts for Here<'_> {
            fn ask(&mut self, _: &str, question: &[u8]) -> Result<Vec<u8>, String> {
                Ok(answer(self.0, question))
            }
        }
        let get = |key: &str, range: GetRange| get_range(&mut Here(&spool), "h", key, &range);
        target("host");
        assert_eq!(get(&key(7), GetRange::Suffix(3)).unwrap(), b"789");
        assert_eq!(get(&key(7), GetRange::Bounded(2..5)).unwrap(), b"234");
        assert_eq!(get(&key(7), GetRange::Bounded(8..50)).unwrap(), b"89");
        assert_eq!(get(&key(7), GetRange::Bounded(20..50)).unwrap(), b"");
        assert!(matches!(get(&key(8), GetRange::Suffix(3)), Err(Failure::NotFound)));
        for wrong in ["/etc/passwd", "chunks/../../c/h/b/1/0000000007.json", ""] {
            assert!(matches!(get(wrong, GetRange::Suffix(3)), Err(Failure::Other(_))), "{wrong}");
        }
        // A host that answers with more than was asked.
        struct Long;
        impl Hosts for Long {
            fn ask(&mut self, _: &str, _: &[u8]) -> Result<Vec<u8>, String> {
                Ok(vec![FOUND; 100])
            }
        }
        let long = get_range(&mut Long, "h", &key(7), &GetRange::Bounded(0..50));
        assert!(matches!(long, Err(Failure::Other(why)) if why.contains("too long")));
        target("store");
        assert!(matches!(get(&key(7), GetRange::Suffix(3)), Err(Failure::Other(_))));
        assert!(answer(&spool, b"{").starts_with(&[FAILED]));
        std::fs::remove_dir_all(&spool).unwrap();
    }
}
