//! Capture files compressed by gzip, zstd or lz4, recognised by their first bytes. Several consecutive members or
//! frames are one file, and frames without data, such as the table of a seekable file, are skipped.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;
use lz4_flex::frame::{Error as Lz4Error, FrameDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: u32 = 0xfd2f_b528;
const LZ4: u32 = 0x184d_2204;
/// First of the sixteen magics of skippable frames, which are the same in zstd and in lz4.
const SKIPPABLE: u32 = 0x184d_2a50;
const SKIPPABLE_MASK: u32 = 0xffff_fff0;
const MAX_WINDOW_LOG: u32 = 27;

/// Compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
    Lz4,
}

impl Compression {
    /// Returns the name; `None` for an uncompressed file.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
            Self::Lz4 => Some("lz4"),
        }
    }

    /// Recognises the first four bytes of a file.
    pub fn of(start: &[u8]) -> Self {
        let magic = start.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        match magic {
            _ if start.starts_with(&GZIP) => Self::Gzip,
            Some(ZSTD) => Self::Zstd,
            Some(LZ4) => Self::Lz4,
            // Files of zstd and lz4 may begin with a frame without data, but only zstd's tools write one there.
            Some(magic) if magic & SKIPPABLE_MASK == SKIPPABLE => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// Returns a reader of a file's decompressed bytes, and the compression.
pub fn open<'a>(mut source: impl Read + Send + 'a) -> io::Result<(Box<dyn Read + Send + 'a>, Compression)> {
    let mut start = Vec::with_capacity(4);
    loop {
        match (&mut source).take(4 - start.len() as u64).read_to_end(&mut start) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let compression = Compression::of(&start);
    let source = Retrying(Cursor::new(start).chain(source));
    let reader: Box<dyn Read + Send + 'a> = match compression {
        Compression::None => Box::new(source.0),
        Compression::Gzip => Box::new(MultiGzDecoder::new(source)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::new(source)?;
            // A frame with a larger window would make the decoder allocate that much memory.
            decoder.window_log_max(MAX_WINDOW_LOG)?;
            Box::new(decoder)
        }
        Compression::Lz4 => Box::new(Lz4(FrameDecoder::new(BufReader::new(source)))),
    };
    let reader = match compression.name() {
        Some(name) => Box::new(Decoder { reader, name }),
        None => reader,
    };
    Ok((reader, compression))
}

/// A decoder that names the assumed compression in errors of the data.
struct Decoder<'a> {
    reader: Box<dyn Read + Send + 'a>,
    name: &'static str,
}

impl Read for Decoder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer).map_err(|error| {
            let is_of_data = error.raw_os_error().is_none();
            let text = || format!("its {} data is cut or damaged ({error})", self.name);
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => error,
                kind if is_of_data => io::Error::new(kind, text()),
                _ => error,
            }
        })
    }
}

/// A source that retries where it would block: decoders cannot resume after an error.
struct Retrying<R>(R);

impl<R: Read> Read for Retrying<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

struct Lz4<R: Read>(FrameDecoder<BufReader<R>>);

impl<R: Read> Read for Lz4<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let error = match self.0.read(buffer) {
                // A frame has ended, and another one may follow.
                Ok(0) if !buffer.is_empty() && !self.0.get_mut().fill_buf()?.is_empty() => continue,
                Ok(count) => return Ok(count),
                Err(error) => error,
            };
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            let Some(Lz4Error::SkippableFrame(len)) = inner else {
                return Err(error);
            };
            io::copy(&mut self.0.get_mut().take((*len).into()), &mut io::sink())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn text() -> Vec<u8> {
        (0..100_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect()
    }

    fn read(bytes: &[u8]) -> io::Result<(Vec<u8>, Compression)> {
        let (mut reader, compression) = open(bytes)?;
        let mut out = Vec::new();
        reader.read_to_end(&mut out)?;
        Ok((out, compression))
    }

    /// Returns two parts, with a frame without data between and after them if the format has such.
    fn parts(compress: impl Fn(&[u8]) -> Vec<u8>, skippable: bool) -> Vec<u8> {
        let text = text();
        let (first, second) = text.split_at(1234);
        let none =
            if skippable { [&SKIPPABLE.to_le_bytes()[..], &3u32.to_le_bytes(), b"abc"].concat() } else { Vec::new() };
        [compress(first), none.clone(), compress(second), none].concat()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn lz4(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn each_format_in_several_parts() {
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
        for (file, expected) in [
            (text(), Compression::None),
            (parts(gzip, false), Compression::Gzip),
            (parts(zstd, true), Compression::Zstd),
            (parts(lz4, true), Compression::Lz4),
        ] {
            let (out, compression) = read(&file).unwrap();
            assert_eq!(compression, expected);
            assert!(out == text(), "{expected:?}");
        }
    }

    #[test]
    fn cut_file_is_an_error_and_a_short_one_is_not() {
        for file in [gzip(&text()), zstd::encode_all(&text()[..], 1).unwrap(), lz4(&text())] {
            let error = read(&file[..file.len() / 2]).unwrap_err();
            assert!(error.to_string().contains("cut or damaged"), "{error}");
        }
        assert_eq!(read(b"ab").unwrap().0, b"ab");
        assert_eq!(read(b"").unwrap().0, b"");
    }
}
