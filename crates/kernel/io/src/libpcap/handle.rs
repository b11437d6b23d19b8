//! A device opened by a libpcap. It is never waited for inside the library: `pcap_dispatch` ignores its timeout while a
//! link is idle, so trawl waits on the device's descriptor.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use trawl_filter::Instruction;
use trawl_sys::error::Advice;
use trawl_sys::netns::{Namespace, run_maybe_in};
use trawl_sys::{Error, Result};

use super::{BpfProgram, Library, PacketHeader, PcapStatistics, PcapT, text};
use trawl_sys::words::word;

pub(super) const ERROR_BUFFER: usize = 256;
/// The device of all interfaces, and the link type in which it names the interface of each packet: LINUX_SLL2.
const ANY: &str = "any";
const COOKED_2: c_int = 276;
const NANOSECONDS: c_int = 1;
const STAMPS_OF_ADAPTER: c_int = 3;
const NETMASK_UNKNOWN: u32 = u32::MAX;
/// Upper bound of a program's length, longer than any real one.
const MOST_INSTRUCTIONS: u32 = 1 << 24;
/// Status numbers of the library.
const ERROR: c_int = -1;
const BREAK: c_int = -2;
const NO_SUCH_DEVICE: c_int = -5;
const PERMISSION_DENIED: c_int = -8;
const IFACE_NOT_UP: c_int = -9;
const PROMISC_PERMISSION_DENIED: c_int = -11;
const WARNING_STAMP_TYPE: c_int = 3;

/// A device to open, and its settings.
#[derive(Clone, Debug)]
pub struct PcapRequest<'a> {
    /// Device name in the library's notation.
    pub device: &'a str,
    pub snaplen: u32,
    pub promiscuous: bool,
    /// Memory for packets in flight, if the device supports it.
    pub buffer: usize,
    /// Maximum time for which packets wait for further ones before they are handed over.
    pub timeout_ms: u32,
    /// Set to request the network card's time stamps.
    pub hardware_time: bool,
    pub direction: CaptureDirection,
}

/// Direction of the packets to capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDirection {
    Both = 0,
    In = 1,
    Out = 2,
}

/// A filter for the library.
#[derive(Clone, Debug)]
pub enum PcapFilter {
    /// A text in the library's own grammar.
    Expression(String),
    /// A compiled filter.
    Classic(Vec<Instruction>),
}

/// An opened device, and the library's warnings.
#[derive(Debug)]
pub struct Opened {
    pub handle: Handle,
    pub warnings: Vec<String>,
    /// True if the device has no hardware clock, or the library does not support it.
    pub no_hardware_time: bool,
}

/// The library's counts, since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcapFigures {
    pub received: u64,
    pub dropped: u64,
    pub dropped_by_interface: u64,
}

/// State after a call of [`Handle::dispatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Packets arrived; more may be waiting.
    MoreMayCome,
    Nothing,
    /// The reader asked to stop.
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
    /// Counts of the last reading: the library's counters have 32 bits.
    last: [u32; 3],
    figures: PcapFigures,
}

// SAFETY: a pcap_t may be used by any thread, but only by one at a time: the methods that use it borrow it mutably, and
// the others read plain values.
unsafe impl Send for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Handle {
    /// Opens a device in a namespace, or in the current one for `None`. Nothing is recorded before a filter is set.
    pub fn open(library: &Arc<Library>, namespace: Option<&Namespace>, request: &PcapRequest<'_>) -> Result<Opened> {
        run_maybe_in(namespace, || Self::open_here(library, request))?
    }

    fn open_here(library: &Arc<Library>, request: &PcapRequest<'_>) -> Result<Opened> {
        let what = || format!("cannot open {} with {}", request.device, library.version());
        let Ok(device) = CString::new(request.device) else {
            return Err(Error::usage(what(), "its name has a zero byte"));
        };
        let mut buffer = [0 as c_char; ERROR_BUFFER];
        let of = &library.functions;
        // SAFETY: the name is a C string, and the buffer has the size that the library requires.
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
            figures: PcapFigures::default(),
        };
        let mut warnings = Vec::new();
        let hardware = handle.configure(request);
        // SAFETY: a handle that is not activated yet.
        let status = unsafe { (of.activate)(pcap) };
        if status < 0 {
            let mut error = Error::failed(what(), handle.reason(status));
            error = error.fix(fix_for(request.device, status));
            return Err(error);
        }
        if status > 0 {
            warnings.push(handle.reason(status));
        }
        let no_hardware_time = request.hardware_time && (!hardware || status == WARNING_STAMP_TYPE);
        handle.finish_activation(request.direction, &mut warnings)?;
        Ok(Opened { handle, warnings, no_hardware_time })
    }

    /// Configures a handle before its activation; returns true if the card's clock could be requested.
    fn configure(&mut self, request: &PcapRequest<'_>) -> bool {
        let of = &self.library.functions;
        let buffer = c_int::try_from(request.buffer).unwrap_or(c_int::MAX);
        let snaplen = c_int::try_from(request.snaplen.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: a handle that is not activated yet, and numbers. These calls fail on an activated one only.
        unsafe {
            (of.set_snaplen)(self.pcap, snaplen);
            (of.set_promisc)(self.pcap, request.promiscuous.into());
            (of.set_timeout)(self.pcap, c_int::try_from(request.timeout_ms).unwrap_or(1));
            (of.set_buffer_size)(self.pcap, buffer);
            // In immediate mode on Linux, each packet occupies a slot of the longest length: few packets would fit.
            (of.set_immediate_mode)(self.pcap, 0);
            // netmap rejects this (-12), so the precision is read after activation.
            (of.set_tstamp_precision)(self.pcap, NANOSECONDS);
        }
        let stamps = of.set_tstamp_type.filter(|_| request.hardware_time);
        // SAFETY: as above. 0 means that the type is accepted, any other number that it is not.
        stamps.is_some_and(|set| unsafe { set(self.pcap, STAMPS_OF_ADAPTER) } == 0)
    }

    /// Reads the results of the activation, and sets the options that require an activated handle.
    fn finish_activation(&mut self, direction: CaptureDirection, warnings: &mut Vec<String>) -> Result<()> {
        let of = &self.library.functions;
        let mut buffer = [0 as c_char; ERROR_BUFFER];
        if let Some(set) = of.set_datalink.filter(|_| self.device == ANY) {
            // Before libpcap 1.10, cooked packets do not name their interface, and the older header stays.
            // SAFETY: an activated handle.
            unsafe { set(self.pcap, COOKED_2) };
        }
        // SAFETY: an activated handle.
        let (precision, link_type, descriptor) = unsafe {
            ((of.get_tstamp_precision)(self.pcap), (of.datalink)(self.pcap), (of.get_selectable_fd)(self.pcap))
        };
        if link_type < 0 {
            let what = format!("cannot find the link type of {}", self.device);
            return Err(Error::failed(what, self.reason(link_type)));
        }
        self.link_type = link_type;
        if precision == NANOSECONDS {
            self.precision = Precision::Nanoseconds;
        }
        self.descriptor = (descriptor >= 0).then_some(descriptor);
        // SAFETY: an activated handle, and a buffer of the size that the library requires.
        let status = unsafe { (of.setnonblock)(self.pcap, 1, buffer.as_mut_ptr()) };
        if status < 0 {
            buffer[ERROR_BUFFER - 1] = 0;
            // SAFETY: the buffer ends with a zero byte.
            let why = unsafe { text(buffer.as_ptr()) };
            let what = format!("cannot read {} without waiting", self.device);
            return Err(Error::failed(what, why.unwrap_or_else(|| self.reason(status))));
        }
        if direction != CaptureDirection::Both {
            // SAFETY: an activated handle, and one of the library's constants.
            let status = unsafe { (of.setdirection)(self.pcap, direction as c_int) };
            if status < 0 {
                let what = format!("cannot choose the direction on {}", self.device);
                return Err(Error::failed(what, self.reason(status)).fix("leave out -Q"));
            }
        }
        warnings.retain(|one| !one.is_empty());
        Ok(())
    }

    /// Installs a filter in the library.
    pub fn filter(&mut self, filter: &PcapFilter) -> Result<()> {
        let mut instructions = match filter {
            PcapFilter::Expression(expression) => self.compile(expression)?,
            PcapFilter::Classic(given) => given.clone(),
        };
        let mut program = BpfProgram { length: instructions.len() as u32, instructions: instructions.as_mut_ptr() };
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

    /// Compiles an expression for this device with the library.
    pub fn compile(&self, expression: &str) -> Result<Vec<Instruction>> {
        let of = &self.library.functions;
        let refuse = |why: String| Error::usage("cannot use this filter", why);
        let Ok(expression) = CString::new(expression) else {
            return Err(refuse("it has a zero byte".to_owned()));
        };
        let mut program = BpfProgram { length: 0, instructions: std::ptr::null_mut() };
        let text = expression.as_ptr();
        // SAFETY: an activated handle, a program to fill, and a C string.
        let status = unsafe { (of.compile)(self.pcap, &mut program, text, 1, NETMASK_UNKNOWN) };
        if status < 0 {
            return Err(refuse(self.reason(status)));
        }
        if program.instructions.is_null() || program.length > MOST_INSTRUCTIONS {
            return Err(refuse(format!(
                "{} compiled it to {} instructions and gave no usable program",
                self.library.version(),
                program.length
            )));
        }
        // SAFETY: the library's program, of the length that it names.
        let instructions =
            unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize).to_vec() };
        if let Some(free) = of.freecode {
            // SAFETY: the library's own program, which is not used afterwards.
            unsafe { free(&mut program) };
        }
        Ok(instructions)
    }

    /// Returns the library's number of the link type (DLT_…).
    pub fn link_type(&self) -> i32 {
        self.link_type
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns the descriptor that becomes readable when packets arrive; not every device has one.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the library's descriptor stays open as long as the handle.
        self.descriptor.map(|number| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Passes the packets that have arrived to `read`, without waiting, until it returns false.
    pub fn dispatch(&mut self, read: &mut dyn FnMut(Packet<'_>) -> bool) -> Result<Rest> {
        let mut reader = Reader {
            read,
            pcap: self.pcap,
            break_loop: self.library.functions.breakloop,
            most: self.snaplen,
            precision: self.precision,
            stopped: false,
        };
        // SAFETY: an activated handle; the callback receives the reader, which outlives the call.
        let status = unsafe { (self.library.functions.dispatch)(self.pcap, -1, show, (&raw mut reader).cast()) };
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

    /// Returns the library's counts; `None` if it has none.
    pub fn figures(&mut self) -> Option<PcapFigures> {
        let mut now = PcapStatistics::default();
        // SAFETY: an activated handle, and a whole structure to fill.
        let status = unsafe { (self.library.functions.stats)(self.pcap, &mut now) };
        if status < 0 {
            return None;
        }
        let now = [now.received, now.dropped, now.dropped_by_interface];
        let [received, dropped, by_interface] = std::array::from_fn(|at| grown(self.last[at], now[at]));
        self.last = now;
        self.figures.received += received;
        self.figures.dropped += dropped;
        self.figures.dropped_by_interface += by_interface;
        Some(self.figures)
    }

    fn reason(&self, status: c_int) -> String {
        let of = &self.library.functions;
        // SAFETY: an open handle; both return a string of the library's, or null.
        let (own, general) = unsafe { (text((of.geterr)(self.pcap)), text((of.statustostr)(status))) };
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
        // SAFETY: the handle is open, and not used afterwards.
        unsafe { (self.library.functions.close)(self.pcap) }
    }
}

/// Returns the growth of a 32-bit counter. A counter that decreased has wrapped if it was in its upper half; otherwise
/// it was reset.
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
            return "run as root, or with CAP_NET_RAW; or capture without promiscuous mode: -p".into();
        }
        IFACE_NOT_UP => return format!("ip link set dev {} up", word(device)).into(),
        _ => {}
    }
    if device.starts_with("netmap:") || device.starts_with("vale") {
        needs("netmap").into()
    } else if device.starts_with("zc:") {
        needs("pf_ring").into()
    } else if device.starts_with("usbmon") {
        "modprobe usbmon".into()
    } else if device.starts_with("dpdk:") {
        "this needs a libpcap that was built with DPDK (--libpcap PATH); --tap dpdk needs none".into()
    } else if status == NO_SUCH_DEVICE || status == ERROR {
        "ip link shows the interfaces; tcpdump -D the devices of the system's libpcap".into()
    } else {
        "docs/peers.md lists the requirements of each kind of device".into()
    }
}

// The callback of a libpcap: the header and the bytes that it lends are checked before they are shown.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    Microseconds,
    Nanoseconds,
}

/// A packet lent by the library.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970; `None` if the library's numbers are no valid time.
    pub time: Option<u64>,
    pub original: u32,
    /// `None` if the library names more bytes than the limit.
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

/// The library's callback for each packet.
///
/// # Safety
/// `user` is the reader that `dispatch` passed; the header and the bytes it names are lent by the library.
pub(super) unsafe extern "C" fn show(user: *mut c_void, header: *const PacketHeader, bytes: *const u8) {
    // SAFETY: `user` is the reader by contract; dispatch has lent it to this call alone.
    let reader = unsafe { &mut *user.cast::<Reader<'_>>() };
    if reader.stopped || header.is_null() {
        return;
    }
    // SAFETY: not null, and the library's header for the duration of this call. It need not be aligned.
    let header = unsafe { header.read_unaligned() };
    // A sound length exceeds neither the requested nor the original length.
    let sound = header.captured <= reader.most && header.captured <= header.original;
    let bytes = match (sound, header.captured) {
        (true, 0) => Some(&[][..]),
        (true, length) if !bytes.is_null() => {
            // SAFETY: the library lends as many bytes as its header names, no more than were requested.
            Some(unsafe { std::slice::from_raw_parts(bytes, length as usize) })
        }
        _ => None,
    };
    let packet = Packet { time: time(&header, reader.precision), original: header.original, bytes };
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
    let fraction = u64::try_from(header.fraction).ok().filter(|one| *one < most)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_wrap_and_are_reset() {
        assert_eq!(grown(5, 9), 4);
        assert_eq!(grown(u32::MAX - 1, 3), 5);
        assert_eq!(grown(1000, 3), 3);
    }

    #[test]
    fn invalid_times_are_detected() {
        let header = |seconds, fraction| PacketHeader { seconds, fraction, captured: 0, original: 0 };
        let (micro, nano) = (Precision::Microseconds, Precision::Nanoseconds);
        assert_eq!(time(&header(1, 5), micro), Some(1_000_005_000));
        assert_eq!(time(&header(1, 5), nano), Some(1_000_000_005));
        for (seconds, fraction) in [(-1, 0), (1, -1), (1, 1_000_000), (i64::MAX, 0)] {
            assert_eq!(time(&header(seconds, fraction), micro), None);
        }
    }
}
