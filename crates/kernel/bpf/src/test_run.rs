//! Test runs of a loaded program on a packet without any interface (BPF_PROG_TEST_RUN).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::{check, opts};
use crate::layout::Shared;

/// Number of bytes by which a program may lengthen a frame.
const ROOM_TO_GROW: usize = 64;

/// Result of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its return value.
    pub value: u32,
    /// Average duration of a run over the repetitions.
    pub duration: Duration,
}

/// Runs an XDP program on a frame.
///
/// The kernel accepts no frame shorter than an Ethernet header. Bytes beyond a page are put into fragments; so are all
/// after the first `linear` bytes if that is given (kernel 6.18 and later; an older one answers EINVAL). The kernel
/// does not check that the program was loaded for fragments.
pub fn xdp(program: BorrowedFd<'_>, frame: &[u8], linear: Option<usize>, repeat: u32) -> io::Result<Answer> {
    let context =
        libbpf_sys::xdp_md { data_end: linear.unwrap_or(frame.len()).min(frame.len()) as u32, ..Default::default() };
    // Without a context the kernel chooses one, which kernels of all versions can.
    run(program, frame, linear.map(|_| &context), repeat, &mut []).map(|(answer, _)| answer)
}

/// Runs an XDP program once on a frame that claims to have arrived by an interface of the calling thread's namespace,
/// which must have a program for that; returns also the frame as the program left it. Redirected frames are not sent.
pub fn xdp_from(program: BorrowedFd<'_>, frame: &[u8], interface: u32) -> io::Result<(Answer, Vec<u8>)> {
    let context = libbpf_sys::xdp_md { data_end: frame.len() as u32, ingress_ifindex: interface, ..Default::default() };
    let mut left = vec![0u8; frame.len() + ROOM_TO_GROW];
    let (answer, length) = run(program, frame, Some(&context), 1, &mut left)?;
    left.truncate(length);
    Ok((answer, left))
}

/// A frame after a run, in addition to the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRunAnswer {
    pub value: u32,
    /// All bytes after the run, including the metadata in front of the frame.
    pub bytes: Vec<u8>,
    /// Number of bytes of metadata.
    pub metadata: u32,
}

/// Room for bytes that a program adds before and after a frame.
const GROWTH: usize = 4096;

/// Runs an XDP program on a frame once, and returns the frame as the program left it.
pub fn xdp_outcome(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<TestRunAnswer> {
    let mut runner = Runner::default();
    let Outcome { value, bytes, metadata, .. } = runner.xdp(program, frame, Arrival::default())?;
    Ok(TestRunAnswer { value, bytes: bytes.to_vec(), metadata })
}

/// Arrival of a frame in a test run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The interface, in the calling thread's namespace; 0 for the loopback interface.
    pub interface: u32,
    /// The queue of the interface.
    pub queue: u32,
}

/// A frame after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'r> {
    /// The program's return value.
    pub value: u32,
    /// All bytes, including the metadata in front of the frame.
    pub bytes: &'r [u8],
    /// Number of bytes of metadata.
    pub metadata: u32,
    pub duration: Duration,
}

/// `struct __sk_buff`, with names for the members in use.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SkBuff {
    length_and_type: [u32; 2],
    mark: u32,
    queue_to_vlan: [u32; 5],
    priority: u32,
    interfaces: [u32; 3],
    passed_on: [u32; 5],
    hash: u32,
    class: u32,
    data_to_metadata: [u32; 17],
    flow_keys: u64,
    time: u64,
    wire_length_and_segments: [u32; 2],
    socket: u64,
    segment_size: u32,
    kind_of_time: u32,
    hardware_time: u64,
}

const _: () = assert!(size_of::<SkBuff>() == 192 && std::mem::offset_of!(SkBuff, time) == 152);

/// The context of a packet after the run of a tc program, in the kernel's order: mark, priority, and the five words that
/// programs pass on (`cb`), then the class (`tc_classid`), which programs at tc can change.
pub type TcContext = [u32; 8];

/// Single runs of programs, which use the same memory.
#[derive(Debug, Default)]
pub struct Runner {
    left: Vec<u8>,
}

impl Runner {
    /// Runs an XDP program once on a frame.
    pub fn xdp(&mut self, program: BorrowedFd<'_>, frame: &[u8], arrival: Arrival) -> io::Result<Outcome<'_>> {
        let context = libbpf_sys::xdp_md {
            data_end: frame.len() as u32,
            ingress_ifindex: arrival.interface,
            rx_queue_index: arrival.queue,
            ..Default::default()
        };
        let (outcome, after) = self.run(program, frame, Some(&context))?;
        Ok(Outcome { metadata: after.data, ..outcome })
    }

    /// Runs an XDP program that adds no metadata once on a frame of the loopback interface. The kernel does not copy a
    /// context, so that the run takes less time.
    pub fn xdp_without_context(&mut self, program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<Outcome<'_>> {
        self.run::<libbpf_sys::xdp_md>(program, frame, None).map(|(outcome, _)| outcome)
    }

    /// Runs a tc program once on a frame with this time stamp, which fits a page. Returns also the context as the
    /// program left it.
    pub fn tc(&mut self, program: BorrowedFd<'_>, frame: &[u8], time: u64) -> io::Result<(Outcome<'_>, TcContext)> {
        let (outcome, after) = self.run(program, frame, Some(&SkBuff { time, ..SkBuff::default() }))?;
        let [a, b, c, d, e] = after.passed_on;
        Ok((outcome, [after.mark, after.priority, a, b, c, d, e, after.class]))
    }

    /// Runs a program once on a frame with this context. Returns also the context as the kernel left it.
    fn run<C: Default>(
        &mut self,
        program: BorrowedFd<'_>,
        frame: &[u8],
        context: Option<&C>,
    ) -> io::Result<(Outcome<'_>, C)> {
        let mut after = C::default();
        let room = frame.len() + GROWTH;
        if self.left.len() < room {
            self.left.resize(room, 0);
        }
        let mut opts = opts!(libbpf_sys::bpf_test_run_opts);
        opts.data_in = frame.as_ptr().cast();
        opts.data_size_in = u32::try_from(frame.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        opts.data_out = self.left.as_mut_ptr().cast();
        opts.data_size_out = self.left.len() as u32;
        if let Some(context) = context {
            opts.ctx_in = std::ptr::from_ref(context).cast();
            opts.ctx_size_in = size_of::<C>() as u32;
            opts.ctx_out = (&raw mut after).cast();
            opts.ctx_size_out = size_of::<C>() as u32;
        }
        opts.repeat = 1;
        // SAFETY: what is read and what is written is given with its true size and outlives the call. The contexts are
        // structures of the kernel, whose members are numbers.
        check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) })?;
        let outcome = Outcome {
            value: opts.retval,
            bytes: &self.left[..(opts.data_size_out as usize).min(self.left.len())],
            metadata: 0,
            duration: Duration::from_nanos(opts.duration.into()),
        };
        Ok((outcome, after))
    }
}

/// Runs a tc program on a frame, which must be longer than an Ethernet header and fit a page. It has no tag outside the
/// packet and is in one piece: current kernels support nothing else.
pub fn tc(program: BorrowedFd<'_>, frame: &[u8], repeat: u32) -> io::Result<Answer> {
    run(program, frame, None, repeat, &mut []).map(|(answer, _)| answer)
}

/// Runs a program that makes system calls (BPF_PROG_TYPE_SYSCALL) on a zeroed context, and returns the context as it
/// left it.
pub fn system<T: Shared>(program: BorrowedFd<'_>) -> io::Result<T> {
    let mut bytes = vec![0u8; size_of::<T>()];
    let mut opts = opts!(libbpf_sys::bpf_test_run_opts);
    opts.ctx_in = bytes.as_mut_ptr().cast();
    opts.ctx_size_in = bytes.len() as u32;
    // SAFETY: the kernel reads and writes as many bytes of the context as it is told, and they outlive the call.
    check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) })?;
    T::from_bytes(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Runs a program; returns also the number of bytes of `left`, if given, that were filled with the resulting frame.
fn run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    context: Option<&libbpf_sys::xdp_md>,
    repeat: u32,
    left: &mut [u8],
) -> io::Result<(Answer, usize)> {
    let mut opts = opts!(libbpf_sys::bpf_test_run_opts);
    opts.data_in = frame.as_ptr().cast();
    opts.data_size_in = u32::try_from(frame.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    opts.repeat = repeat.try_into().unwrap_or(i32::MAX);
    if let Some(context) = context {
        opts.ctx_in = std::ptr::from_ref(context).cast();
        opts.ctx_size_in = size_of_val(context) as u32;
    }
    if !left.is_empty() {
        opts.data_out = left.as_mut_ptr().cast();
        opts.data_size_out = u32::try_from(left.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    }
    // SAFETY: frame and context are only read, with their true sizes, and outlive the call; so does the place for
    // output, whose size the kernel knows.
    check(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) })?;
    let answer = Answer { value: opts.retval, duration: Duration::from_nanos(opts.duration.into()) };
    Ok((answer, opts.data_size_out as usize))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;
    use crate::map;
    use crate::program::{HAS_FRAGS, SCHED_CLS, XDP};
    use crate::program::{LoadOptions, returning};
    use trawl_ebpf::coverage::{Form, Parts, add_probes};
    use trawl_ebpf::{Edits, Insn, op};
    use trawl_sys::testing::root_or_skip;

    fn answering(kind: u32, value: i32, flags: u32) -> OwnedFd {
        let instructions = returning(value);
        LoadOptions { flags, ..LoadOptions::new("trawl_test", kind) }
            .load(&instructions)
            .expect("a program of two instructions")
    }

    #[test]
    fn answers_come_back() {
        if !root_or_skip() {
            return;
        }
        let frame = [0u8; 64];
        let program = answering(XDP, 2, 0);
        let answer = xdp(program.as_fd(), &frame, None, 10).expect("a run");
        assert_eq!(answer.value, 2);
        let program = answering(SCHED_CLS, 7, 0);
        let answer = tc(program.as_fd(), &frame, 1).expect("a run");
        assert_eq!(answer.value, 7);
    }

    #[test]
    fn frames_may_have_several_pages() {
        if !root_or_skip() {
            return;
        }
        let program = answering(XDP, 2, HAS_FRAGS);
        let answer = xdp(program.as_fd(), &vec![0; 9000], None, 1).expect("a run");
        assert_eq!(answer.value, 2);
    }

    #[test]
    fn short_frames_are_an_error() {
        if !root_or_skip() {
            return;
        }
        let program = answering(XDP, 2, 0);
        assert!(xdp(program.as_fd(), &[0; 13], None, 1).is_err());
    }

    /// Returns the numbers of the parts of a program that a frame with this first byte ran, and the verdict.
    fn parts_that_ran(program: &[Insn], first: u8, always_spill: bool) -> (Vec<usize>, u32) {
        const OFFSET: u32 = 8;
        let map = map::create_mmapable_array("trawl_test", 64, 1).expect("a map");
        let mut edits = Edits::default();
        let form = Form { map: map.as_raw_fd(), first: OFFSET, stack_depths: Some(&[0, 0]), always_spill };
        let probes = add_probes(program, &Parts::of(program), &mut edits, form, |_| true);
        assert_eq!(probes.spilled.is_empty(), !always_spill);
        let edited = edits.apply(program).expect("all jumps are near");
        let loaded = LoadOptions::new("trawl_test", XDP).load(&edited.instructions).expect("a valid program");
        let mut frame = [0u8; 64];
        frame[0] = first;
        let verdict = xdp(loaded.as_fd(), &frame, None, 1).expect("a run").value;
        let marked = map::read(map.as_fd(), 0).expect("the array's value");
        assert!(marked.iter().all(|byte| *byte <= 1) && marked[..OFFSET as usize] == [0; OFFSET as usize]);
        (
            marked
                .into_iter()
                .skip(OFFSET as usize)
                .enumerate()
                .filter(|(_, byte)| *byte == 1)
                .map(|(n, _)| n)
                .collect(),
            verdict,
        )
    }

    #[test]
    fn probes_set_the_bytes_of_the_parts_that_ran() {
        if !root_or_skip() {
            return;
        }
        let is_set = Insn::new(op::JMP | op::JSET | op::K, 7, 0, 6, 1);
        let is_four = Insn::new(op::JMP32 | op::JEQ | op::K, 7, 0, 5, 4);
        let again = Insn::new(op::JMP | op::JLT | op::X, 8, 7, -2, 0);
        let program = [
            op::load(op::W, 6, 1, 0), // the frame
            op::load(op::W, 2, 1, 4), // its end
            op::mov(3, 6),
            op::alu_imm(op::ADD, 3, 14),
            Insn::new(op::JMP | op::JGT | op::X, 3, 2, 10, 0), // to the drop
            op::load(op::B, 7, 6, 0),
            is_set,  // to the pass
            is_four, // to the pass
            op::alu_imm(op::MOV, 8, 0),
            op::alu_imm(op::ADD, 8, 1),
            again,
            op::mov(1, 7),
            op::call(4).with_src(op::OWN_FUNCTION),
            op::alu_imm(op::MOV, 0, 2), // pass
            op::exit(),
            op::alu_imm(op::MOV, 0, 1), // drop
            op::exit(),
            op::mov(0, 1), // the function
            op::exit(),
        ];
        for always_spill in [false, true] {
            let ran = |first| parts_that_ran(&program, first, always_spill);
            // Parts 0 to 8 are blocks, 9 to 11 the ways of the jumps.
            assert_eq!(ran(1), (vec![0, 1, 6, 9], 2));
            assert_eq!(ran(4), (vec![0, 1, 2, 6, 10], 2));
            assert_eq!(ran(2), (vec![0, 1, 2, 3, 4, 5, 6, 8, 11], 2));
            assert_eq!(ran(0), (vec![0, 1, 2, 3, 4, 5, 6, 8], 2));
        }
    }
}
