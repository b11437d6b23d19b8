//! Reads a file ahead on a thread of its own, and decompresses it there, so that the one that sends does not wait for
//! the disk.

use std::fs::File;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use trawl_packet::read::compressed;

/// How much is read at once, and how many such pieces may wait: what a file takes of memory.
const PIECE: usize = 256 << 10;
const PIECES: usize = 8;

type Piece = io::Result<Vec<u8>>;

#[derive(Debug)]
pub struct Ahead {
    pieces: Receiver<Piece>,
    /// Emptied ones, to be filled again.
    empty: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
    taken: usize,
}

impl Ahead {
    pub fn new(file: File) -> Self {
        let (full, pieces) = sync_channel(PIECES);
        let (empty, emptied) = sync_channel(PIECES + 2);
        // It ends when the other side is dropped, or at the end of the file.
        thread::spawn(move || fill(file, &full, &emptied));
        Self {
            pieces,
            empty,
            piece: Vec::new(),
            taken: 0,
        }
    }
}

fn fill(file: File, full: &SyncSender<Piece>, emptied: &Receiver<Vec<u8>>) {
    let mut file = match compressed::open(file) {
        Ok((file, _)) => file,
        Err(error) => {
            // It is told at the first read, unless the replay is over.
            let _ = full.send(Err(error));
            return;
        }
    };
    loop {
        let mut piece = emptied.try_recv().unwrap_or_default();
        piece.resize(PIECE, 0);
        let read = match file.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other,
        };
        let is_last = !matches!(read, Ok(1..));
        let piece = read.map(|count| {
            piece.truncate(count);
            piece
        });
        if full.send(piece).is_err() || is_last {
            return;
        }
    }
}

impl Read for Ahead {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            let Ok(next) = self.pieces.recv() else {
                return Ok(0);
            };
            let used = std::mem::replace(&mut self.piece, next?);
            self.taken = 0;
            // Nobody fills it where the end is read already.
            let _ = self.empty.try_send(used);
        }
        let rest = &self.piece[self.taken..];
        let count = rest.len().min(to.len());
        to[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(name: &str, bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("trawl-ahead-{name}-{}", std::process::id()));
        let mut file = File::create(&path).expect("a file");
        file.write_all(bytes).expect("written");
        let file = File::open(&path).expect("the file");
        std::fs::remove_file(&path).expect("its name is not needed");
        file
    }

    #[test]
    fn all_bytes_come_in_order() {
        let bytes: Vec<u8> = (0..PIECE as u32 * 3 + 17)
            .map(|n| (n % 251) as u8)
            .collect();
        let mut read = Vec::new();
        let mut ahead = Ahead::new(file("order", &bytes));
        ahead.read_to_end(&mut read).expect("read");
        assert!(read == bytes);
        assert_eq!(ahead.read(&mut [0; 8]).expect("still at the end"), 0);
    }

    #[test]
    fn an_empty_file_and_one_that_is_not_read_to_its_end() {
        let mut none = Vec::new();
        Ahead::new(file("empty", &[]))
            .read_to_end(&mut none)
            .expect("read");
        assert!(none.is_empty());
        let mut ahead = Ahead::new(file("left", &vec![1; PIECE * 20]));
        ahead.read_exact(&mut [0; 10]).expect("read");
    }

    #[test]
    fn errors_come_through() {
        let directory = File::open(std::env::temp_dir()).expect("a directory");
        assert!(Ahead::new(directory).read(&mut [0; 8]).is_err());
    }
}
