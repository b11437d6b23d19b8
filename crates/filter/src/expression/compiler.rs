//! Who compiles expressions: a libpcap that another crate has loaded, since this one makes no system calls.

use std::sync::OnceLock;

use super::Options;
use crate::classic::Instruction;
use crate::error::FilterError;

/// libpcap's compiler.
pub trait Compiler: Send + Sync {
    /// Makes sure that there is a library; it may be loaded by this.
    fn ready(&self) -> Result<(), Unavailable>;

    /// Compiles an expression as libpcap does; an error is libpcap's own words. Matches return the snaplen.
    fn compile(&self, expression: &str, options: &Options) -> Result<Vec<Instruction>, String>;
}

/// Why there is no compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    pub what: String,
    pub why: String,
    pub fix: Option<String>,
}

static COMPILER: OnceLock<&'static dyn Compiler> = OnceLock::new();

/// All expressions of this process are compiled by this one. The first call decides.
pub fn compile_with(compiler: &'static dyn Compiler) {
    COMPILER.get_or_init(|| compiler);
}

/// The compiler, with its library loaded.
pub(super) fn ready() -> Result<&'static dyn Compiler, FilterError> {
    #[cfg(test)]
    compile_with(&tests::System);
    let compiler = *COMPILER.get().ok_or_else(|| {
        FilterError::NoCompiler(Unavailable {
            what: "cannot compile the filter".to_owned(),
            why: "this program has not said which libpcap to use".to_owned(),
            fix: None,
        })
    })?;
    compiler.ready().map_err(FilterError::NoCompiler)?;
    Ok(compiler)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::ByteOrder;

    /// The system's libpcap. The crate that loads it is built on another instance of this one.
    pub struct System;

    impl Compiler for System {
        fn ready(&self) -> Result<(), Unavailable> {
            Ok(())
        }

        fn compile(&self, text: &str, options: &Options) -> Result<Vec<Instruction>, String> {
            use trawl_io::libpcap::{FilterRequest, compile_filter};
            let request = FilterRequest {
                link_type: options.link.0,
                snaplen: options.snaplen,
                netmask: options.netmask,
                optimise: options.optimise,
                file: options.file.map(|order| order == ByteOrder::Big),
            };
            let program = compile_filter(text, &request)?;
            Ok(program
                .iter()
                .map(|i| Instruction::new(i.code, i.jt, i.jf, i.k))
                .collect())
        }
    }
}
