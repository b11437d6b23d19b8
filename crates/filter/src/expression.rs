//! Expressions: libpcap's compiler, and the position of an error in the text.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::OnceLock;

use parking_lot::Mutex;
use split::Split;

use crate::classic::{Classic, Instruction};
use crate::error::{FilterError, Unavailable};

pub use split::MIN_SPLIT_LIST;

#[cfg(test)]
mod file;
pub mod fold;
mod lists;
mod locate;
mod members;
mod operands;
mod split;

/// Link type of the filtered packets: a DLT number of libpcap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub i32);

impl LinkType {
    /// An Ethernet header.
    pub const ETHERNET: LinkType = LinkType(1);
    /// An IPv4 or IPv6 header.
    pub const RAW_IP: LinkType = LinkType(12);
}

/// Parameters of libpcap's compiler besides the expression.
#[derive(Debug, Clone, Copy)]
pub struct CompilerOptions {
    /// Link type of the packets.
    pub link: LinkType,
    /// Return value of a match; on a socket, the number of bytes kept.
    pub snaplen: u32,
    /// The interface's IPv4 netmask, for `ip broadcast`. Without it, as with a file in tcpdump,
    /// only 0.0.0.0 and 255.255.255.255 are broadcast addresses.
    pub netmask: Option<Ipv4Addr>,
    /// True if libpcap's optimiser runs.
    pub optimise: bool,
    /// Byte order of the packets' file, if any. libpcap then uses only facts in the packets, and considers the system
    /// that wrote them: BSD's loopback headers contain that system's numbers in its own byte order.
    pub file: Option<ByteOrder>,
}

/// Byte order of the machine that wrote a capture file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    Little,
    Big,
}

impl Default for CompilerOptions {
    fn default() -> Self {
        CompilerOptions { link: LinkType::ETHERNET, snaplen: 262_144, netmask: None, optimise: true, file: None }
    }
}

/// Lock for libpcap's compiler, which has global state before 1.8, and whose name look-ups always have.
static COMPILER: Mutex<()> = Mutex::new(());

/// Compiles an expression as tcpdump would.
pub fn compile(expression: &str, options: &CompilerOptions) -> Result<Classic, FilterError> {
    let _one_at_a_time = COMPILER.lock();
    let compiler = ready()?;
    let plain = CompilerOptions { optimise: false, ..*options };
    let run = |piece: &str, is_plain: bool| compiler.compile(piece, if is_plain { &plain } else { options });
    // Names are resolved in Ethernet frames, where the position of the addresses is known.
    let on_ethernet = CompilerOptions { link: LinkType::ETHERNET, ..plain };
    let ask = |text: &str| compiler.compile(text, &on_ethernet);
    let optimise = match split::compile(expression, options.snaplen.max(1), run, &ask) {
        Split::Whole { optimise } => optimise,
        Split::Compiled(program) => {
            return Classic::with_tables(program.code, program.lookups, program.tables);
        }
        Split::Refused(refused) => return Err(refused_piece(refused, compiler, options)),
        Split::TooLong { comparisons } => return Err(too_many(comparisons)),
    };
    let options = &CompilerOptions { optimise: options.optimise && optimise, ..*options };
    match compiler.compile(expression, options) {
        Ok(instructions) => Classic::from_compiler(instructions),
        Err(message) => {
            let at = located(expression, &message, compiler, options);
            Err(FilterError::Expression { message, at })
        }
    }
}

fn too_many(comparisons: usize) -> FilterError {
    let most = split::MAX_WHOLE;
    FilterError::Unsplit { comparisons, most }
}

/// Refuses the expressions that `compile` refuses because libpcap would need too long, without compiling.
pub fn check_length(expression: &str) -> Result<(), FilterError> {
    let refused = split::too_many(expression).map(too_many);
    refused.map_or(Ok(()), Err)
}

/// Returns true if libpcap accepts an expression in one piece.
pub fn compiles_whole(expression: &str) -> bool {
    let options = CompilerOptions { optimise: false, ..CompilerOptions::default() };
    ready().is_ok_and(|compiler| compiler.compile(expression, &options).is_ok())
}

fn located(
    expression: &str,
    message: &str,
    compiler: &dyn Compiler,
    options: &CompilerOptions,
) -> Option<Range<usize>> {
    let options = &CompilerOptions { optimise: false, ..*options };
    locate::locate(expression, message, |text| compiler.compile(text, options).err())
}

/// Returns the error for a piece of a long expression, with its position in the whole.
fn refused_piece(refused: split::Refused, compiler: &dyn Compiler, options: &CompilerOptions) -> FilterError {
    let at = located(&refused.piece, &refused.message, compiler, options)
        .filter(|at| at.start >= refused.inherited)
        .map(|at| {
            let shift = |offset: usize| offset - refused.inherited + refused.start;
            shift(at.start)..shift(at.end)
        });
    FilterError::Expression { message: refused.message, at }
}

// The compiler of expressions: a libpcap that another crate has loaded, since this one makes no system calls.

/// libpcap's compiler.
pub trait Compiler: Send + Sync {
    /// Makes sure that a library is loaded; may load it.
    fn ready(&self) -> Result<(), Unavailable>;

    /// Compiles an expression as libpcap does; an error is libpcap's own message. Matches return the snaplen.
    fn compile(&self, expression: &str, options: &CompilerOptions) -> Result<Vec<Instruction>, String>;
}

static CHOSEN: OnceLock<&'static dyn Compiler> = OnceLock::new();

/// Sets the compiler of all expressions of this process. The first call decides.
pub fn compile_with(compiler: &'static dyn Compiler) {
    CHOSEN.get_or_init(|| compiler);
}

/// Returns the compiler, with its library loaded.
fn ready() -> Result<&'static dyn Compiler, FilterError> {
    #[cfg(test)]
    compile_with(&tests::System);
    let compiler = *CHOSEN.get().ok_or_else(|| {
        FilterError::NoCompiler(Unavailable {
            what: "cannot compile the filter".to_owned(),
            why: "this program has not chosen a libpcap".to_owned(),
            fix: None,
        })
    })?;
    compiler.ready().map_err(FilterError::NoCompiler)?;
    Ok(compiler)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::classic::Instruction;
    use crate::expression::ByteOrder;

    fn error(expression: &str) -> (String, Option<&str>) {
        match compile(expression, &CompilerOptions::default()) {
            Err(FilterError::Expression { message, at }) => (message, at.map(|at| &expression[at])),
            other => panic!("{expression}: {other:?}"),
        }
    }

    /// Counts the bytes of all texts that it compiles.
    #[derive(Debug, Default)]
    struct Counting(AtomicUsize);

    impl Compiler for Counting {
        fn ready(&self) -> Result<(), Unavailable> {
            Ok(())
        }

        fn compile(&self, expression: &str, options: &CompilerOptions) -> Result<Vec<Instruction>, String> {
            self.0.fetch_add(expression.len(), Ordering::Relaxed);
            ready().map_err(|e| e.to_string())?.compile(expression, options)
        }
    }

    #[test]
    fn locating_an_error_uses_a_bounded_amount_of_text() {
        const MOST: usize = 32 << 10;
        let terms = |count: usize| "host 10.0.0.1 or ".repeat(count) + "and udp";
        for (count, has_mark) in [(3, true), (300, false), (3000, false)] {
            let (text, asked) = (terms(count), Counting::default());
            let message = "can't parse filter expression: syntax error";
            let found = located(&text, message, &asked, &CompilerOptions::default());
            assert_eq!(found.map(|at| &text[at]), has_mark.then_some("and"), "{count}");
            assert!(asked.0.load(Ordering::Relaxed) <= MOST, "{count} terms");
        }
    }

    #[test]
    fn programs_are_printed_like_tcpdump() {
        let ip = compile("ip and greater 100", &CompilerOptions::default()).unwrap();
        assert_eq!(
            ip.to_string(),
            "(000) ldh      [12]\n\
         (001) jeq      #0x800           jt 2\tjf 5\n\
         (002) ld       #pktlen\n\
         (003) jge      #0x64            jt 4\tjf 5\n\
         (004) ret      #262144\n\
         (005) ret      #0\n"
        );
    }

    #[test]
    fn errors_are_located() {
        for (expression, message, expected) in [
            ("ip &&& tcp", "syntax error", Some("&")),
            ("tcp port", "syntax error", Some("")),
            ("port 53]", "syntax error", Some("]")),
            ("host 1.2.3.4 zz", "syntax error", Some("zz")),
            ("tcp and and udp", "syntax error", Some("and")),
            ("(tcp or udp", "syntax error", Some("")),
            ("tcp or udp)", "syntax error", Some(")")),
            ("ip[0:2 = 5", "syntax error", Some("=")),
            ("host nosuch.invalid", "unknown host", Some("nosuch.invalid")),
            ("tcp port nosuchport", "unknown port", Some("nosuchport")),
            ("port 80 or port 99999", "illegal port", Some("99999")),
            ("ip proto nosuch", "unknown ip proto", Some("nosuch")),
            ("net 10.1.2.3/8", "non-network bits", Some("10.1.2.3/8")),
            ("vlan 9999 and tcp", "VLAN tag 9999", Some("9999")),
            ("tcp ( 80", "syntax error", Some("(")),
            ("ip[0:3] = 1", "data size", Some("]")),
            ("net 10.0.0.0/40", "mask length", Some("10.0.0.0/40")),
            ("tcp or wlan type mgt", "802.11", Some("mgt")),
            ("tcp or ifname eth0", "ifname", Some("eth0")),
            ("ether host zz:00", "unknown ether host", Some("zz:00")),
            ("udp or hopc 5", "SS7", Some("5")),
            ("tcp and radio[0] = 1", "radio information", Some("]")),
            ("ip[0] = 1/0", "division by zero", Some("1/0")),
        ] {
            let (found, at) = error(expression);
            assert!(found.contains(message), "{expression}: {found}");
            assert_eq!(at, expected, "{expression}: {found}");
        }
    }

    #[test]
    fn carets_are_under_the_error() {
        let expression = "tcp port 80 zz";
        let error = compile(expression, &CompilerOptions::default()).unwrap_err();
        assert_eq!(error.caret(expression).unwrap(), "tcp port 80 zz\n            ^^");
    }

    #[test]
    fn netmask_defines_broadcast_addresses() {
        let mut packet = [0u8; 60];
        packet[12] = 8;
        packet[30..34].copy_from_slice(&[10, 1, 2, 255]);
        let with = CompilerOptions { netmask: Some(Ipv4Addr::new(255, 255, 255, 0)), ..CompilerOptions::default() };
        for text in ["ip broadcast", "not ip broadcast", "len > 5 and (ip broadcast)"] {
            let narrow = compile(text, &with).unwrap().run(&packet, 60) != 0;
            let wide = compile(text, &CompilerOptions::default()).unwrap().run(&packet, 60) != 0;
            assert_ne!(narrow, wide, "{text}");
        }
    }

    /// 255.255.255.255 means an unknown netmask in libpcap.
    #[test]
    fn a_netmask_of_all_ones_is_unknown() {
        let options = CompilerOptions { netmask: Some(Ipv4Addr::BROADCAST), ..CompilerOptions::default() };
        let error = compile("tcp or ip broadcast", &options).unwrap_err();
        assert_eq!(error.to_string(), "netmask not known, so 'ip broadcast' not supported");
        assert!(compile("tcp or ether broadcast", &options).is_ok());
    }

    /// libpcap accepts them, and no packet has such bytes.
    #[test]
    fn constant_negative_offsets_match_nothing() {
        for text in ["ether[-31:2] = 0", "ip[-2000000:1] = 0", "ether[-1048576:1] >= 0", "ether[-2000000:1] >= 0"] {
            let program = compile(text, &CompilerOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(program.run(&[0; 100], 100), 0, "{text}");
            crate::lower(&program, &crate::Target::xdp()).unwrap_or_else(|e| panic!("{text}: {e}"));
            let or_else = compile(&format!("len > 5 or {text}"), &CompilerOptions::default()).unwrap();
            assert_ne!(or_else.run(&[0; 100], 100), 0, "{text}");
        }
    }

    #[test]
    fn nul_characters_are_refused() {
        assert!(compile("ip\0", &CompilerOptions::default()).is_err());
    }

    /// The system's libpcap. The crate that loads it is built against another instance of this one.
    pub struct System;

    impl Compiler for System {
        fn ready(&self) -> Result<(), Unavailable> {
            Ok(())
        }

        fn compile(&self, text: &str, options: &CompilerOptions) -> Result<Vec<Instruction>, String> {
            use trawl_io::libpcap::{FilterRequest, compile_filter};
            let request = FilterRequest {
                link_type: options.link.0,
                snaplen: options.snaplen,
                netmask: options.netmask,
                optimise: options.optimise,
                file: options.file.map(|order| order == ByteOrder::Big),
            };
            let program = compile_filter(text, &request)?;
            Ok(program.iter().map(|i| Instruction::new(i.code, i.jt, i.jf, i.k)).collect())
        }
    }
}
