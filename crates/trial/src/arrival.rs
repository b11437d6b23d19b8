//! The interface that packets arrive by in a trial: a veth with the name, the number and the queues of the one that
//! recorded them, in a network namespace that ends with the trial.

use trawl_sys::netlink::{Netlink, VethEnd, create_veth};
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result};

const LOOPBACK: &str = "lo";
/// Lowest number that no namespace gives to its loopback interface.
const FIRST_INDEX: u32 = 2;
/// Largest number of queues of an interface.
const MOST_QUEUES: u32 = 4096;

/// An interface of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivalInterface {
    pub name: String,
    pub index: u32,
    pub queues: u32,
    /// True if an existing interface lent its number.
    is_known: bool,
    /// True if the existing interface of this name has another number, which the new namespace gave to another device.
    pub is_renumbered: bool,
}

impl ArrivalInterface {
    /// Parses `IF` or `IF:QUEUES`. An interface of that name in the given or the current namespace lends its number and,
    /// unless they are given, its queues.
    pub fn find(text: &str, default_namespace: Option<&str>) -> Result<Self> {
        let (interface, queues) = parts(text)?;
        let (namespace, name) = netns::split_namespace(interface, default_namespace);
        let namespace = namespace.map(Namespace::open).transpose()?;
        let known = Netlink::open(namespace.as_ref())?.find_link(name)?;
        let index = known.as_ref().map_or(FIRST_INDEX, |link| link.index);
        let is_known = known.is_some();
        let queues = queues.unwrap_or_else(|| known.map_or(1, |link| link.rx_queues.max(1)));
        if name == LOOPBACK && queues > 1 {
            return Err(refused(text, "the loopback interface has one queue").fix("give another name: --as eth0:4"));
        }
        Ok(Self { name: name.to_owned(), index, queues, is_known, is_renumbered: false })
    }

    /// Runs `work` on a thread in a new namespace, in which the interface that it gets is up.
    pub fn run<R: Send>(&self, work: impl FnOnce(Self) -> Result<R> + Send) -> Result<R> {
        let ran = netns::run_in_scratch(|| self.create().and_then(work));
        ran.map_err(|e| {
            Error::os(format!("cannot make a namespace with the interface {}", self.name), e)
                .fix("this requires root (CAP_SYS_ADMIN)")
        })?
    }

    /// Returns an interface that does not exist yet.
    #[cfg(test)]
    pub(crate) fn new(name: &str, index: u32, queues: u32) -> Self {
        Self { name: name.to_owned(), index, queues, is_known: true, is_renumbered: false }
    }

    /// Creates the interface in the current namespace.
    fn create(&self) -> Result<Self> {
        if self.name == LOOPBACK {
            return Ok(self.clone());
        }
        let mut netlink = Netlink::current()?;
        // The kernel creates tunnels in each new namespace if their modules are loaded.
        let taken: Vec<u32> = netlink.links()?.iter().map(|link| link.index).collect();
        let mut free = (FIRST_INDEX..).filter(|index| !taken.contains(index));
        let (index, other) = if taken.contains(&self.index) {
            (free.next().unwrap_or_default(), free.next().unwrap_or_default())
        } else {
            (self.index, free.find(|index| *index != self.index).unwrap_or_default())
        };
        let end = |name, index| VethEnd {
            name,
            index,
            namespace: None,
            mac: None,
            mtu: None,
            queues: self.queues,
            no_link_local: true,
        };
        let name = if self.name == "peer" { "other" } else { "peer" };
        create_veth(&end(&self.name, index), &end(name, other))?;
        netlink.set_up(other)?;
        netlink.set_up(index)?;
        Ok(Self { index, is_renumbered: self.is_known && index != self.index, ..self.clone() })
    }
}

fn refused(text: &str, why: &str) -> Error {
    Error::usage(format!("cannot run packets as of {text}"), why)
}

/// Splits `IF:QUEUES`. A namespace may stand before the interface.
fn parts(text: &str) -> Result<(&str, Option<u32>)> {
    let Some((interface, queues)) = text.rsplit_once(':').filter(|(_, last)| last.bytes().all(|b| b.is_ascii_digit()))
    else {
        return Ok((text, None));
    };
    let queues = queues.parse().ok().filter(|queues| (1..=MOST_QUEUES).contains(queues));
    let wrong = || refused(text, &format!("the number of queues is not between 1 and {MOST_QUEUES}"));
    Ok((interface, Some(queues.ok_or_else(|| wrong().fix("--as eth0:4"))?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_sys::netlink::interface;
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn queues_follow_the_interface() {
        assert_eq!(parts("eth0").unwrap(), ("eth0", None));
        assert_eq!(parts("eth0:16").unwrap(), ("eth0", Some(16)));
        assert_eq!(parts("red:eth0").unwrap(), ("red:eth0", None));
        assert_eq!(parts("red:eth0:2").unwrap(), ("red:eth0", Some(2)));
        for wrong in ["eth0:0", "eth0:", "eth0:5000"] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn interface_has_its_number_and_queues_in_a_namespace_that_ends() {
        if !root_or_skip() {
            return;
        }
        for index in [2, 3, 7777] {
            let arrival = ArrivalInterface::new("trawl_eth0", index, 16);
            let (made, link) = arrival.run(|made| Ok((made, Netlink::current()?.link("trawl_eth0")?))).unwrap();
            assert_eq!((link.index, link.rx_queues, link.is_up()), (made.index, 16, true));
            assert_eq!(made.is_renumbered, made.index != index);
        }
        // The loopback interface has number 1.
        let (index, is_renumbered) = ArrivalInterface::new("trawl_eth0", 1, 1)
            .run(|made| Ok((made.index, made.is_renumbered)))
            .expect("an interface with another number");
        assert!(index > 1 && is_renumbered);
        assert!(Netlink::current().unwrap().find_link("trawl_eth0").unwrap().is_none());
        assert!(interface::name_of(7777).is_none_or(|name| name != "trawl_eth0"));
    }
}
