//! A device that a libpcap has opened, read without ever waiting inside the library: `pcap_dispatch` ignores its time-out
//! while a link is idle, so waiting is done on the device's descriptor.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use trawl_sys::error::Advice;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::{Error, Result};

use super::{BpfProgram, Library, PacketHeader, PcapT, Statistics, text};

pub(super) const ERROR_BUFFER: usize = 256;
const NANOSECONDS: c_int = 1;
const STAMPS_OF_ADAPTER: c_int = 3;
const NETMASK_UNKNOWN: u32 = u32::MAX;
/// No program of an expression is as long.
const MOST_INSTRUCTIONS: u32 = 1 << 24;
/// The library's status numbers that are looked at.
const ERROR: c_int = -1;
const BREAK: c_int = -2;
const NO_SUCH_DEVICE: c_int = -5;
const PERMISSION_DENIED: c_int = -8;
const IFACE_NOT_UP: c_int = -9;
const PROMISC_PERMISSION_DENIED: c_int = -11;
const WARNING_STAMP_TYPE: c_int = 3;

/// What to open, and how.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// As the library names its devices.
    pub device: &'a str,
    pub snaplen: u32,
    pub promiscuous: bool,
    /// Memory for packets on their way, as far as the device has any.
    pub buffer: usize,
    /// How long packets may wait for others before they are handed over.
    pub timeout_ms: u32,
    /// The network card's clock.
    pub hardware_time: bool,
    pub direction: CaptureDirection,
}

/// Which packets, by the way they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDirection {
    Both = 0,
    In = 1,
    Out = 2,
}

/// A filter for the library.
#[derive(Clone, Debug)]
pub enum PcapFilter {
    /// In the library's own grammar.
    Expression(String),
    /// Compiled already.
    Classic(Vec<libc::sock_filter>),
}

/// An opened device, and what the library said on the way.
#[derive(Debug)]
pub struct Opened {
    pub handle: Handle,
    pub warnings: Vec<String>,
    /// The device has no clock of the card's, or the library knows none.
    pub no_hardware_time: bool,
}

/// The library's figures, since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub received: u64,
    pub dropped: u64,
    pub dropped_by_interface: u64,
}

/// What is left after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Packets came; more may be there.
    MoreMayCome,
    Nothing,
    /// The reader wanted no more.
    Stopped,
}

pub struct Handle {
    pcap: *mut PcapT,
    library: Arc<Library>,
    device: String,
    snaplen: u32,
    descriptor: Option<RawFd>,
    precision: Precision,
    link_type: c_int,
    /// The figures as they were last read: they are counters of 32 bits.
    last: [u32; 3],
    figures: Figures,
}

// SAFETY: a pcap_t may be used by any thread, as long as it is one at a time: the methods that use it take it mutably,
// and the others read plain values.
unsafe impl Send for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl Handle {
    /// Opens a device in a namespace, or here for `None`. Nothing is recorded before a filter is set.
    pub fn open(
        library: &Arc<Library>,
        namespace: Option<&Namespace>,
        request: &Request<'_>,
    ) -> Result<Opened> {
        run_maybe_in(namespace, || Self::open_here(library, request))?
    }

    fn open_here(library: &Arc<Library>, request: &Request<'_>) -> Result<Opened> {
        let what = || format!("cannot open {} with {}", request.device, library.version());
        let Ok(device) = CString::new(request.device) else {
            return Err(Error::usage(what(), "its name has a zero byte"));
        };
        let mut buffer = [0 as c_char; ERROR_BUFFER];
        let of = &library.functions;
        // SAFETY: the name is a C string, and the buffer has the size that the library demands.
        let pcap = unsafe { (of.create)(device.as_ptr(), buffer.as_mut_ptr()) };
        if pcap.is_null() {
            buffer[ERROR_BUFFER - 1] = 0;
            // SAFETY: the buffer ends with a zero byte.
            let why = unsafe { text(buffer.as_ptr()) };
            let why = why.unwrap_or_else(|| "the library gave no reason".to_owned());
            return Err(Error::failed(what(), why).fix(fix_for(request.device, ERROR)));
        }
        let mut handle = Self {
            pcap,
            library: Arc::clone(library),
            device: request.device.to_owned(),
            snaplen: request.snaplen,
            descriptor: None,
            precision: Precision::Microseconds,
            link_type: 0,
            last: [0; 3],
            figures: Figures::default(),
        };
        let mut opened_with = Vec::new();
        let hardware = handle.configure(request);
        // SAFETY: a handle that is not activated yet.
        let status = unsafe { (of.activate)(pcap) };
        if status < 0 {
            let mut error = Error::failed(what(), handle.reason(status));
            error = error.fix(fix_for(request.device, status));
            return Err(error);
        }
        if status > 0 {
            opened_with.push(handle.reason(status));
        }
        let no_hardware_time = request.hardware_time && (!hardware || status == WARNING_STAMP_TYPE);
        handle.look(request.direction, &mut opened_with)?;
        Ok(Opened {
            handle,
            warnings: opened_with,
            no_hardware_time,
        })
    }

    /// Before it is activated; tells whether the card's clock could be asked for.
    fn configure(&mut self, request: &Request<'_>) -> bool {
        let of = &self.library.functions;
        let buffer = c_int::try_from(request.buffer).unwrap_or(c_int::MAX);
        let snaplen = c_int::try_from(request.snaplen.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: a handle that is not activated yet, and numbers. These calls fail on an activated one only.
        unsafe {
            (of.set_snaplen)(self.pcap, snaplen);
            (of.set_promisc)(self.pcap, request.promiscuous.into());
            (of.set_timeout)(self.pcap, c_int::try_from(request.timeout_ms).unwrap_or(1));
            (of.set_buffer_size)(self.pcap, buffer);
            // At once means one slot of the longest length for each packet on Linux: few would fit.
            (of.set_immediate_mode)(self.pcap, 0);
            // netmap has none (-12): the precision is asked for after activation.
            (of.set_tstamp_precision)(self.pcap, NANOSECONDS);
        }
        let stamps = of.set_tstamp_type.filter(|_| request.hardware_time);
        // SAFETY: as above. 0 says that the type is taken, a negative or positive number that it is not.
        stamps.is_some_and(|set| unsafe { set(self.pcap, STAMPS_OF_ADAPTER) } == 0)
    }

    /// What activation has decided, and the rest that can be set only now.
    fn look(&mut self, direction: CaptureDirection, warnings: &mut Vec<String>) -> Result<()> {
        let of = &self.library.functions;
        let mut buffer = [0 as c_char; ERROR_BUFFER];
        // SAFETY: an activated handle.
        let (precision, link_type, descriptor) = unsafe {
            (
                (of.get_tstamp_precision)(self.pcap),
                (of.datalink)(self.pcap),
                (of.get_selectable_fd)(self.pcap),
            )
        };
        if link_type < 0 {
            let what = format!("cannot tell the link type of {}", self.device);
            return Err(Error::failed(what, self.reason(link_type)));
        }
        self.link_type = link_type;
        if precision == NANOSECONDS {
            self.precision = Precision::Nanoseconds;
        }
        self.descriptor = (descriptor >= 0).then_some(descriptor);
        // SAFETY: an activated handle, and a buffer of the size that the library demands.
        let status = unsafe { (of.setnonblock)(self.pcap, 1, buffer.as_mut_ptr()) };
        if status < 0 {
            buffer[ERROR_BUFFER - 1] = 0;
            // SAFETY: the buffer ends with a zero byte.
            let why = unsafe { text(buffer.as_ptr()) };
            let what = format!("cannot read {} without waiting", self.device);
            return Err(Error::failed(
                what,
                why.unwrap_or_else(|| self.reason(status)),
            ));
        }
        if direction != CaptureDirection::Both {
            // SAFETY: an activated handle, and a number of the library's.
            let status = unsafe { (of.setdirection)(self.pcap, direction as c_int) };
            if status < 0 {
                let what = format!("cannot choose the direction on {}", self.device);
                return Err(Error::failed(what, self.reason(status)).fix("leave out -Q"));
            }
        }
        warnings.retain(|one| !one.is_empty());
        Ok(())
    }

    /// Has the library show only packets that match.
    pub fn filter(&mut self, filter: &PcapFilter) -> Result<()> {
        let mut instructions = match filter {
            PcapFilter::Expression(expression) => self.compile(expression)?,
            PcapFilter::Classic(given) => given.clone(),
        };
        let mut program = BpfProgram {
            length: instructions.len() as u32,
            instructions: instructions.as_mut_ptr(),
        };
        // SAFETY: an activated handle and a whole program. The library makes a copy of it.
        let status = unsafe { (self.library.functions.setfilter)(self.pcap, &mut program) };
        match status {
            0.. => Ok(()),
            _ => {
                let what = format!("cannot filter on {}", self.device);
                Err(Error::failed(what, self.reason(status)))
            }
        }
    }

    /// What the library makes of an expression for this device.
    pub fn compile(&self, expression: &str) -> Result<Vec<libc::sock_filter>> {
        let of = &self.library.functions;
        let refuse = |why: String| Error::usage("cannot use this filter", why);
        let Ok(expression) = CString::new(expression) else {
            return Err(refuse("it has a zero byte".to_owned()));
        };
        let mut program = BpfProgram {
            length: 0,
            instructions: std::ptr::null_mut(),
        };
        let text = expression.as_ptr();
        // SAFETY: an activated handle, a program to fill, and a C string.
        let status = unsafe { (of.compile)(self.pcap, &mut program, text, 1, NETMASK_UNKNOWN) };
        if status < 0 {
            return Err(refuse(self.reason(status)));
        }
        if program.instructions.is_null() || program.length > MOST_INSTRUCTIONS {
            return Err(refuse(format!(
                "{} made {} instructions of it and gave no usable program",
                self.library.version(),
                program.length
            )));
        }
        // SAFETY: the library's program, of the length that it says.
        let instructions = unsafe {
            std::slice::from_raw_parts(program.instructions, program.length as usize).to_vec()
        };
        if let Some(free) = of.freecode {
            // SAFETY: the library's own program, which nobody uses any more.
            unsafe { free(&mut program) };
        }
        Ok(instructions)
    }

    /// The library's number for how packets begin (DLT_…).
    pub fn link_type(&self) -> i32 {
        self.link_type
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What becomes readable when packets come; not every device has one.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the library's descriptor stays open as long as the handle.
        self.descriptor
            .map(|number| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Shows the packets that are there, without waiting, until the reader wants no more.
    pub fn dispatch(&mut self, read: &mut dyn FnMut(Packet<'_>) -> bool) -> Result<Rest> {
        let mut reader = Reader {
            read,
            pcap: self.pcap,
            break_loop: self.library.functions.breakloop,
            most: self.snaplen,
            precision: self.precision,
            stopped: false,
        };
        // SAFETY: an activated handle; the callback is given the reader, which outlives the call.
        let status = unsafe {
            (self.library.functions.dispatch)(self.pcap, -1, show, (&raw mut reader).cast())
        };
        match (status, reader.stopped) {
            (BREAK, _) | (_, true) => Ok(Rest::Stopped),
            (0, _) => Ok(Rest::Nothing),
            (1.., _) => Ok(Rest::MoreMayCome),
            (status, _) => {
                let what = format!("cannot read packets from {}", self.device);
                Err(Error::failed(what, self.reason(status)))
            }
        }
    }

    /// The library's figures; `None` where it has none.
    pub fn figures(&mut self) -> Option<Figures> {
        let mut now = Statistics::default();
        // SAFETY: an activated handle, and a whole structure to fill.
        let status = unsafe { (self.library.functions.stats)(self.pcap, &mut now) };
        if status < 0 {
            return None;
        }
        let now = [now.received, now.dropped, now.dropped_by_interface];
        let [received, dropped, by_interface] =
            std::array::from_fn(|at| grown(self.last[at], now[at]));
        self.last = now;
        self.figures.received += received;
        self.figures.dropped += dropped;
        self.figures.dropped_by_interface += by_interface;
        Some(self.figures)
    }

    fn reason(&self, status: c_int) -> String {
        let of = &self.library.functions;
        // SAFETY: an open handle; both give a string of the library's, or nothing.
        let (own, general) =
            unsafe { (text((of.geterr)(self.pcap)), text((of.statustostr)(status))) };
        let (own, general) = (own.unwrap_or_default(), general.unwrap_or_default());
        match (own.is_empty(), general.is_empty()) {
            (false, true) => own,
            (false, false) if matches!(status, ERROR | 1) || general == own => own,
            (false, false) => format!("{general} ({own})"),
            (true, false) => general,
            (true, true) => format!("the library gave no reason (status {status})"),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nobody uses it after this.
        unsafe { (self.library.functions.close)(self.pcap) }
    }
}

/// How much a counter of 32 bits has grown. One that became less has passed its end, if it was near it; else it was
/// reset.
fn grown(before: u32, now: u32) -> u64 {
    match now.checked_sub(before) {
        Some(more) => more.into(),
        None if before > u32::MAX / 2 && now < u32::MAX / 2 => now.wrapping_sub(before).into(),
        None => now.into(),
    }
}

fn fix_for(device: &str, status: c_int) -> Advice {
    let needs = |module: &str| {
        format!(
            "this needs the kernel module {module}: modprobe {module}, and a libpcap built with it (--libpcap PATH; see docs/peers.md)"
        )
    };
    match status {
        PERMISSION_DENIED | PROMISC_PERMISSION_DENIED => {
            return "run as root, or with CAP_NET_RAW; or leave the mode as it is: -p".into();
        }
        IFACE_NOT_UP => return format!("ip link set dev {device} up").into(),
        _ => {}
    }
    if device.starts_with("netmap:") || device.starts_with("vale") {
        needs("netmap").into()
    } else if device.starts_with("zc:") {
        needs("pf_ring").into()
    } else if device.starts_with("usbmon") {
        "modprobe usbmon".into()
    } else if device.starts_with("dpdk:") {
        "this needs a libpcap that was built with DPDK (--libpcap PATH); --tap dpdk needs none"
            .into()
    } else if status == NO_SUCH_DEVICE || status == ERROR {
        "ip link shows the interfaces; tcpdump -D the devices of the system's libpcap".into()
    } else {
        "docs/peers.md tells what each kind of device needs".into()
    }
}

// What a libpcap calls for each packet: the header and bytes that it lends are checked before they are shown.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    Microseconds,
    Nanoseconds,
}

/// A packet as the library shows it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970; nothing where the library's numbers are no time.
    pub time: Option<u64>,
    pub original: u32,
    /// Nothing where the library names more bytes than it may have.
    pub bytes: Option<&'a [u8]>,
}

pub(super) struct Reader<'a> {
    pub(super) read: &'a mut dyn FnMut(Packet<'_>) -> bool,
    pub(super) pcap: *mut PcapT,
    pub(super) break_loop: unsafe extern "C" fn(*mut PcapT),
    pub(super) most: u32,
    pub(super) precision: Precision,
    pub(super) stopped: bool,
}

/// What the library calls for each packet.
///
/// # Safety
/// `user` is the reader that `dispatch` gave; the header and the bytes it names are the library's to lend.
pub(super) unsafe extern "C" fn show(
    user: *mut c_void,
    header: *const PacketHeader,
    bytes: *const u8,
) {
    // SAFETY: as said above; dispatch has lent it to nobody else.
    let reader = unsafe { &mut *user.cast::<Reader<'_>>() };
    if reader.stopped || header.is_null() {
        return;
    }
    // SAFETY: not null, and the library's header for the time of this call. It need not be aligned.
    let header = unsafe { header.read_unaligned() };
    // Never more than was asked for, and never a packet that is longer than it was.
    let sound = header.captured <= reader.most && header.captured <= header.original;
    let bytes = match (sound, header.captured) {
        (true, 0) => Some(&[][..]),
        (true, length) if !bytes.is_null() => {
            // SAFETY: the library lends as many bytes as its header says, no more than were asked for.
            Some(unsafe { std::slice::from_raw_parts(bytes, length as usize) })
        }
        _ => None,
    };
    let packet = Packet {
        time: time(&header, reader.precision),
        original: header.original,
        bytes,
    };
    if !(reader.read)(packet) {
        reader.stopped = true;
        // SAFETY: the handle that is being read.
        unsafe { (reader.break_loop)(reader.pcap) };
    }
}

fn time(header: &PacketHeader, precision: Precision) -> Option<u64> {
    let (most, factor) = match precision {
        Precision::Microseconds => (1_000_000, 1000),
        Precision::Nanoseconds => (1_000_000_000, 1),
    };
    let seconds = u64::try_from(header.seconds).ok()?;
    let fraction = u64::try_from(header.fraction)
        .ok()
        .filter(|one| *one < most)?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(fraction * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_pass_their_end_and_are_reset() {
        assert_eq!(grown(5, 9), 4);
        assert_eq!(grown(u32::MAX - 1, 3), 5);
        assert_eq!(grown(1000, 3), 3);
    }

    #[test]
    fn numbers_that_are_no_time_are_told() {
        let header = |seconds, fraction| PacketHeader {
            seconds,
            fraction,
            captured: 0,
            original: 0,
        };
        let (micro, nano) = (Precision::Microseconds, Precision::Nanoseconds);
        assert_eq!(time(&header(1, 5), micro), Some(1_000_005_000));
        assert_eq!(time(&header(1, 5), nano), Some(1_000_000_005));
        for (seconds, fraction) in [(-1, 0), (1, -1), (1, 1_000_000), (i64::MAX, 0)] {
            assert_eq!(time(&header(seconds, fraction), micro), None);
        }
    }
}
