//! Filter expressions, compiled by a libpcap that is loaded for the first of them.

use std::ffi::{CString, c_char, c_int, c_void};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use trawl_filter::error::Unavailable;
use trawl_filter::expression::{ByteOrder, Compiler, CompilerOptions};
use trawl_filter::{Instruction, expression};
use trawl_sys::{Error, Result};

use super::handle::ERROR_BUFFER;
use super::{BpfProgram, Library, PacketHeader, PcapT, text};

/// Library that `--libpcap` names, if any.
static PATH: OnceLock<PathBuf> = OnceLock::new();
static LIBRARY: Mutex<Option<Arc<Library>>> = Mutex::new(None);

/// Makes libpcap the compiler of filters in this process: the system's, unless [`choose_for_filters`] names another.
pub fn compile_filters() {
    #[cfg(feature = "static")]
    super::look_up_in_files();
    expression::compile_with(&AtRunTime);
}

/// Sets the library that compiles filters. Called before the first filter is compiled.
pub fn choose_for_filters(path: &Path) {
    PATH.get_or_init(|| path.to_owned());
}

/// Target of a compiled filter.
#[derive(Clone, Copy, Debug)]
pub struct FilterRequest {
    /// libpcap's number (DLT_…).
    pub link_type: i32,
    pub snaplen: u32,
    /// 255.255.255.255 for an unknown netmask.
    pub netmask: Option<Ipv4Addr>,
    pub optimise: bool,
    /// For the packets of a file: true if a big-endian machine wrote it.
    pub file: Option<bool>,
}

/// Compiles an expression with the chosen library. An error is the library's own text, or the reason why it cannot be
/// loaded.
pub fn compile_filter(expression: &str, request: &FilterRequest) -> Result<Vec<Instruction>, String> {
    let library = library().map_err(|e| e.to_string())?;
    Ok(CompiledFilter::new(&library, expression, request)?.instructions())
}

fn library() -> Result<Arc<Library>> {
    let mut loaded = LIBRARY.lock();
    match &*loaded {
        Some(library) => Ok(Arc::clone(library)),
        None => {
            let library = Library::load(PATH.get().map(PathBuf::as_path))?;
            *loaded = Some(Arc::clone(&library));
            Ok(library)
        }
    }
}

struct AtRunTime;

impl Compiler for AtRunTime {
    fn ready(&self) -> Result<(), Unavailable> {
        library().map(drop).map_err(|error: Error| Unavailable {
            what: error.what().to_owned(),
            why: error.why().to_owned(),
            fix: error.how_to_fix().map(str::to_owned),
        })
    }

    fn compile(&self, expression: &str, options: &CompilerOptions) -> Result<Vec<Instruction>, String> {
        let request = FilterRequest {
            link_type: options.link.0,
            snaplen: options.snaplen,
            netmask: options.netmask,
            optimise: options.optimise,
            file: options.file.map(|order| order == ByteOrder::Big),
        };
        compile_filter(expression, &request)
    }
}

/// A program in the library's memory.
#[derive(Debug)]
pub struct CompiledFilter {
    program: BpfProgram,
    library: Arc<Library>,
}

// SAFETY: the program is memory that this value alone owns, and it never changes.
unsafe impl Send for CompiledFilter {}

impl CompiledFilter {
    /// Compiles an expression; an error is the library's own text.
    pub fn new(library: &Arc<Library>, expression: &str, request: &FilterRequest) -> Result<Self, String> {
        let Ok(text) = CString::new(expression) else {
            return Err("the expression has a NUL character in it".to_owned());
        };
        let handle = Dead::open(library, request)?;
        let mut program = BpfProgram { length: 0, instructions: std::ptr::null_mut() };
        // The compiler expects the machine's byte order; a netmask of 0 makes all bits belong to the host.
        let netmask = request.netmask.map_or(0, u32::from);
        // SAFETY: an open handle, a program to fill, and a C string.
        let status = unsafe {
            (library.functions.compile)(handle.pcap, &mut program, text.as_ptr(), request.optimise.into(), netmask)
        };
        match status {
            0.. => Ok(Self { program, library: Arc::clone(library) }),
            _ => Err(handle.reason()),
        }
    }

    pub fn instructions(&self) -> Vec<Instruction> {
        if self.program.instructions.is_null() {
            return Vec::new();
        }
        // SAFETY: the library reports the number of instructions, and they stay until the program is freed.
        unsafe { std::slice::from_raw_parts(self.program.instructions, self.program.length as usize) }.to_vec()
    }

    /// Runs the library's own interpreter on a packet; `None` if the library has none.
    pub fn matches(&self, packet: &[u8]) -> Option<bool> {
        let run = self.library.functions.offline_filter?;
        let length = u32::try_from(packet.len()).ok()?;
        let header = PacketHeader { seconds: 0, fraction: 0, captured: length, original: length };
        // SAFETY: the library's own program, a whole header, and as many bytes as it names.
        Some(unsafe { run(&self.program, &header, packet.as_ptr()) } != 0)
    }
}

impl Drop for CompiledFilter {
    fn drop(&mut self) {
        if let Some(free) = self.library.functions.freecode {
            // SAFETY: the library's own program, which is not used afterwards.
            unsafe { free(&mut self.program) };
        }
    }
}

/// A handle that reads nothing: it represents a link type, or a file without packets.
struct Dead<'a> {
    pcap: *mut PcapT,
    library: &'a Library,
}

impl<'a> Dead<'a> {
    fn open(library: &'a Library, request: &FilterRequest) -> Result<Self, String> {
        let snaplen = request.snaplen.max(1);
        let pcap = match request.file {
            None => {
                let open = library.functions.open_dead.ok_or_else(|| lacks("pcap_open_dead"))?;
                let snaplen = c_int::try_from(snaplen).unwrap_or(c_int::MAX);
                // SAFETY: the function accepts any numbers.
                unsafe { open(request.link_type, snaplen) }
            }
            Some(big_endian) => open_empty(library, &file_header(request.link_type, snaplen, big_endian))?,
        };
        if pcap.is_null() { Err("libpcap has no memory for a handle".to_owned()) } else { Ok(Self { pcap, library }) }
    }

    fn reason(&self) -> String {
        // SAFETY: an open handle; its text stays until the next call.
        let said = unsafe { text((self.library.functions.geterr)(self.pcap)) };
        said.unwrap_or_else(|| "libpcap gave no reason".to_owned())
    }
}

impl Drop for Dead<'_> {
    fn drop(&mut self) {
        // SAFETY: an open handle, which is not used afterwards.
        unsafe { (self.library.functions.close)(self.pcap) };
    }
}

fn lacks(symbol: &str) -> String {
    format!("this libpcap lacks {symbol}")
}

/// Opens an empty file: libpcap compiles for a file only with a handle that has read one.
fn open_empty(library: &Library, header: &[u8]) -> Result<*mut PcapT, String> {
    let open = (library.functions.fopen_offline).ok_or_else(|| lacks("pcap_fopen_offline"))?;
    // SAFETY: the bytes are only read, as the mode requires, and outlive the reading of the header, which happens
    // before this function returns; no packet is read afterwards.
    let stream = unsafe { libc::fmemopen(header.as_ptr().cast::<c_void>().cast_mut(), header.len(), c"r".as_ptr()) };
    if stream.is_null() {
        let why = std::io::Error::last_os_error();
        return Err(format!("cannot give libpcap an empty capture file: {why}"));
    }
    let mut buffer = [0 as c_char; ERROR_BUFFER];
    // SAFETY: an open stream, and a buffer of the size that the library requires.
    let pcap = unsafe { open(stream, buffer.as_mut_ptr()) };
    if pcap.is_null() {
        buffer[ERROR_BUFFER - 1] = 0;
        // SAFETY: the library does not close the stream on failure; the buffer ends with a zero byte.
        let why = unsafe {
            libc::fclose(stream);
            text(buffer.as_ptr())
        };
        return Err(why.unwrap_or_else(|| "libpcap gave no reason".to_owned()));
    }
    Ok(pcap)
}

/// Returns a file's header. Link types in files are libpcap's own numbers, or ones that it accepts for them.
fn file_header(link_type: i32, snaplen: u32, big_endian: bool) -> Vec<u8> {
    const MAGIC: u32 = 0xa1b2_c3d4;
    const VERSION: [u16; 2] = [2, 4];
    let long = |word: u32| if big_endian { word.to_be_bytes() } else { word.to_le_bytes() };
    let short = |word: u16| if big_endian { word.to_be_bytes() } else { word.to_le_bytes() };
    let mut header = long(MAGIC).to_vec();
    header.extend(VERSION.map(short).concat());
    header.extend([0, 0, snaplen, link_type as u32].map(long).concat());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHERNET: FilterRequest =
        FilterRequest { link_type: 1, snaplen: 96, netmask: None, optimise: true, file: None };

    #[test]
    fn filters_are_the_librarys() {
        let library = Library::load(None).unwrap();
        let filter = CompiledFilter::new(&library, "ip", &ETHERNET).unwrap();
        let code = filter.instructions();
        assert_eq!((code.len(), code[2].k, code[3].k), (4, 96, 0));
        let mut frame = [0; 60];
        assert_eq!(filter.matches(&frame), Some(false));
        frame[12] = 8;
        assert_eq!(filter.matches(&frame), Some(true));
    }

    #[test]
    fn mistakes_are_reported_in_the_librarys_words() {
        let library = Library::load(None).unwrap();
        let error = CompiledFilter::new(&library, "tcp port", &ETHERNET).unwrap_err();
        assert!(error.contains("syntax error"), "{error}");
        let file = FilterRequest { file: Some(true), ..ETHERNET };
        let error = CompiledFilter::new(&library, "inbound", &file).unwrap_err();
        assert!(error.contains("not supported on Ethernet"), "{error}");
    }
}
