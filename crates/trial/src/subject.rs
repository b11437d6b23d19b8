//! A program that a trial loads: one of an object file, and perhaps the one that runs on an interface.

use std::path::PathBuf;

use trawl_packet::verdict::VerdictKind;
use trawl_program::Site;
use trawl_program::load::Source;
use trawl_program::running::Running;
use trawl_sys::{Error, Result};

/// A program of a file.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    pub file: PathBuf,
    /// The program's name, if the file has several.
    pub program: Option<String>,
    running: Option<RunsOn>,
}

/// The running program that a subject must be.
#[derive(Clone, Debug)]
struct RunsOn {
    /// The interface, in the syntax of `-i`.
    interface: String,
    name: String,
    tag: String,
}

impl Subject {
    pub fn new(file: PathBuf, program: Option<String>) -> Self {
        Self { file, program, running: None }
    }

    /// Returns the program that runs on an interface, from the file that trawl loaded it from.
    pub fn running(site: &Site, running: &Running) -> Result<Self> {
        let on = RunsOn {
            interface: site.label().to_owned(),
            name: running.name().to_owned(),
            tag: running.plain_tag().unwrap_or_default().to_owned(),
        };
        if let Some(name) = running.bundled() {
            return Err(Error::failed(on.what(), format!("it is trawl's own program {name}, not one of a file")));
        }
        let Some(file) = running.file() else {
            return Err(on.refused("another tool loaded it, and its object file is unknown"));
        };
        if running.plain_tag().is_none() {
            return Err(on.refused("it has hooks, and its tag without them is unknown"));
        }
        Ok(Self { file, program: Some(on.name.clone()), running: Some(on) })
    }

    /// Returns the name of the program's function, from the file.
    pub fn name(&self) -> Result<String> {
        self.open()?.0.name()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the name of its origin for people: the file, or the interface that it runs on.
    pub(crate) fn label(&self) -> String {
        match &self.running {
            Some(on) => on.interface.clone(),
            None => self.file.display().to_string(),
        }
    }

    /// Opens the file with the program selected; returns also the kind of its verdicts.
    pub(crate) fn open(&self) -> Result<(Source, VerdictKind)> {
        let open = || {
            let mut source = Source::read(&self.file)?;
            let name = self.program.as_deref();
            let kind = if source.prefer_tc(name) { VerdictKind::Tc } else { VerdictKind::Xdp };
            source.choose(name)?;
            Ok((source, kind))
        };
        open().map_err(|error: Error| match &self.running {
            Some(on) => on.refused(&format!("its file has changed: {error}")),
            None => error,
        })
    }

    /// Checks that the program is the one that runs, by the kernel's tag of its instructions.
    pub(crate) fn check_tag(&self, tag: Option<&str>) -> Result<()> {
        let Some(on) = &self.running else {
            return Ok(());
        };
        match tag {
            Some(tag) if tag == on.tag => Ok(()),
            Some(_) => Err(on.refused(&format!("{} has changed since it was loaded", self.file.display()))),
            None => Err(on.refused(&format!("the kernel did not report the tag of {}", self.file.display()))),
        }
    }
}

impl RunsOn {
    fn what(&self) -> String {
        format!("cannot test against {} on {}", self.name, self.interface)
    }

    fn refused(&self, why: &str) -> Error {
        let fix = format!("give the file that runs, as in --against OLD.o --maps {}", self.interface);
        Error::failed(self.what(), why).fix(fix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_changed_is_refused_with_the_fix() {
        let on = RunsOn { interface: "eth0".to_owned(), name: "filter".to_owned(), tag: "aa".to_owned() };
        let subject = Subject { file: "/old.o".into(), program: None, running: Some(on) };
        assert!(subject.check_tag(Some("aa")).is_ok());
        assert_eq!(
            subject.check_tag(Some("bb")).unwrap_err().to_string(),
            "cannot test against filter on eth0: /old.o has changed since it was loaded; \
             give the file that runs, as in --against OLD.o --maps eth0"
        );
        assert!(subject.check_tag(None).is_err());
        assert_eq!(subject.label(), "eth0");
    }
}
