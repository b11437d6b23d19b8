//! Findings about one interface: its driver, attached programs, offloads that change packets before capture, and usable
//! taps.

use trawl_attach::Site;
use trawl_attach::card::CardEffects;
use trawl_attach::explain::{LINEAR_MTU, ONE_BUFFER_MTU};
use trawl_attach::passing::{XdpSending, gro_suffices};
use trawl_bpf::probe::KernelFeature;
use trawl_sys::netlink::ethtool::{Channels, Ethtool};
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netlink::{LinkRecord, Netlink, XdpAbilities, xdp_abilities};
use trawl_sys::netns::{Namespace, exec_prefix};
use trawl_sys::{Error, Result};

use super::attached::{self, AttachedPrograms};
use super::{CheckState, Finding, offload, veth};
use crate::taps::trace;
use trawl_sys::words::word;

/// Returns all findings about an interface; an error if it does not exist.
pub fn examine(namespace: Option<&Namespace>, name: &str) -> Result<Vec<Finding>> {
    let interface = Interface::find(namespace, name)?;
    let link = Netlink::open(namespace)?.link(name)?;
    let ethtool = Ethtool::open(namespace, name)?;
    let abilities = xdp_abilities(namespace, link.index).unwrap_or_default();
    let subject = Subject {
        area: match namespace.and_then(Namespace::name) {
            Some(namespace) => format!("{namespace}:{name}"),
            None => name.to_owned(),
        },
        prefix: exec_prefix(namespace),
        driver: interface.driver.clone().unwrap_or_default(),
        interface,
        abilities,
    };
    let attached = attached::inspect(&subject.area, namespace, &link);
    let mut findings = vec![subject.link(), subject.hardware()];
    findings.extend(subject.native());
    findings.extend(subject.mtu());
    findings.push(subject.sending(namespace)?);
    findings.extend(subject.attaching());
    findings.extend(ethtool.channels().ok().and_then(|channels| subject.queues(channels)));
    if link.kind.as_deref() == Some("veth") {
        // Looking into the peer's namespace requires root; the rest of the findings does not.
        findings.extend(
            veth::examine(&subject.area, namespace, &link, abilities)
                .unwrap_or_else(|error| vec![subject.unknown("peer", &error)]),
        );
    }
    let features = ethtool.features().unwrap_or_default();
    findings.extend(offload::examine(&subject.area, &subject.prefix, name, &subject.driver, &features));
    findings.push(subject.hardware_time(&ethtool));
    findings.extend(attached.findings.iter().cloned());
    findings.extend(subject.taps(&attached, &link));
    Ok(findings)
}

/// The interface that the findings describe.
struct Subject {
    area: String,
    /// Prefix of commands that run in the interface's namespace.
    prefix: String,
    driver: String,
    interface: Interface,
    abilities: Option<XdpAbilities>,
}

impl Subject {
    fn finding(&self, subject: &str, state: CheckState, text: impl Into<String>) -> Finding {
        Finding::new(&self.area, subject, state, text)
    }

    fn unknown(&self, subject: &str, error: &Error) -> Finding {
        self.finding(subject, CheckState::Warn, "unknown").why(error.to_string()).fix("run trawl as root")
    }

    fn link(&self) -> Finding {
        let about = &self.interface;
        if !about.up {
            return self.finding("link", CheckState::Warn, "down: no packets pass").fix(format!(
                "{}ip link set {} up",
                self.prefix,
                word(&about.name)
            ));
        }
        let mac = about.mac.map(|mac| {
            let bytes: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
            format!(", {}", bytes.join(":"))
        });
        self.finding("link", CheckState::Ok, format!("up, MTU {}{}", about.mtu, mac.unwrap_or_default()))
    }

    fn hardware(&self) -> Finding {
        let mut text = self.interface.hardware_text();
        if let Some(speed) = self.interface.speed_bits {
            text.push_str(&format!(", {} Mbit/s", speed / 1_000_000));
        }
        self.finding("driver", CheckState::Info, text)
    }

    /// Checks native XDP. A veth's lack of it has its own findings.
    fn native(&self) -> Option<Finding> {
        let finding = match self.abilities {
            Some(abilities) if abilities.native() => {
                let mut text = "yes".to_owned();
                let extras = [
                    (abilities.multi_buffer(), "jumbo frames in several buffers"),
                    (abilities.redirect(), "redirect"),
                    (abilities.redirect_target(), "others may redirect to it"),
                    (abilities.zero_copy() && self.interface.shares_memory(), "AF_XDP without copying"),
                    (abilities.hardware_time() && !self.is_veth(), "hardware time stamps"),
                ];
                for (_, extra) in extras.iter().filter(|(has, _)| *has) {
                    text.push_str(", ");
                    text.push_str(extra);
                }
                self.finding("native XDP", CheckState::Ok, text)
            }
            Some(_) if self.is_veth() => return None,
            Some(_) => self
                .finding("native XDP", CheckState::Warn, "no: programs run in skb mode, after the driver")
                .why(format!("the driver ({}) has no XDP support", self.interface.driver_name())),
            None => self
                .finding("native XDP", CheckState::Info, "unknown until it is tried")
                .why("kernels before 6.3 cannot query a driver"),
        };
        Some(finding)
    }

    fn mtu(&self) -> Option<Finding> {
        let abilities = self.abilities.filter(|a| a.native())?;
        let mtu = self.interface.mtu;
        if mtu <= LINEAR_MTU {
            return None;
        }
        Some(if abilities.multi_buffer() {
            self.finding(
                "MTU",
                CheckState::Info,
                format!("{mtu}: only XDP programs that support multi-buffer packets can be attached; trawl's do"),
            )
        } else {
            self.finding("MTU", CheckState::Warn, format!("{mtu} is more than native XDP supports with this driver"))
                .why("the driver accepts packets in one buffer only")
                .fix(format!(
                    "{}ip link set {} mtu {ONE_BUFFER_MTU}; or use --mode skb",
                    self.prefix,
                    word(&self.interface.name)
                ))
        })
    }

    /// Returns whether redirected packets and live frames can leave by the interface.
    fn sending(&self, namespace: Option<&Namespace>) -> Result<Finding> {
        let subject = "XDP sending";
        let site = Site::named(namespace.cloned(), &self.interface.name)?;
        let (text, state) = match XdpSending::of(&site)? {
            XdpSending::Always => ("yes: redirected packets and live frames", CheckState::Ok),
            XdpSending::WithProgram => {
                ("yes, while it has an XDP program of its own, which trawl attaches where necessary", CheckState::Ok)
            }
            XdpSending::AsOtherEnd if !gro_suffices() => {
                ("yes, while its other end has an XDP program, which trawl arranges", CheckState::Ok)
            }
            XdpSending::AsOtherEnd => {
                ("yes, while its other end has GRO or an XDP program, which trawl arranges", CheckState::Ok)
            }
            XdpSending::Unknown => ("unknown until it is tried", CheckState::Info),
            XdpSending::Never => {
                ("no: redirects need skb mode, and gen uses AF_XDP or packet sockets", CheckState::Info)
            }
        };
        let finding = self.finding(subject, state, text);
        Ok(match (state, KernelFeature::LiveFrames.probe().why()) {
            (CheckState::Info, _) | (_, None) => finding,
            (_, Some(why)) => self.finding(subject, CheckState::Info, "redirected packets, no live frames").why(why),
        })
    }

    /// Returns what the card does when its first XDP program is attached and the last one removed.
    fn attaching(&self) -> Option<Finding> {
        let is_possible = self.abilities.is_none_or(XdpAbilities::native);
        let effects = CardEffects::of(&self.interface).filter(|_| is_possible)?;
        let finding = self.finding("XDP attach", CheckState::Info, effects.to_string());
        Some(match effects.interruption {
            "" => finding,
            _ => {
                finding.why("the driver resets the card for the first program; further programs, replacements and hooks for captures do not reset it")
            }
        })
    }

    fn queues(&self, channels: Channels) -> Option<Finding> {
        let receive = channels.rx + channels.combined;
        let most = channels.max_rx + channels.max_combined;
        if most == 0 {
            return None;
        }
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let text = format!("{receive} receive, {} send (at most {most} receive)", channels.tx + channels.combined);
        let wanted = cpus.min(most);
        if receive > 1 || wanted <= 1 {
            return Some(self.finding("queues", CheckState::Ok, text));
        }
        let kind = if channels.max_combined > 0 { "combined" } else { "rx" };
        Some(
            self.finding("queues", CheckState::Warn, text)
                .why(format!("one CPU at a time serves a queue, and this machine has {cpus} CPUs"))
                .fix(format!("{}ethtool -L {} {kind} {wanted}", self.prefix, word(&self.interface.name))),
        )
    }

    fn is_veth(&self) -> bool {
        self.driver == "veth"
    }

    fn hardware_time(&self, ethtool: &Ethtool) -> Finding {
        let stamps = ethtool.timestamping().unwrap_or_default();
        let through_xdp = self.abilities.is_some_and(XdpAbilities::hardware_time);
        let text = match (through_xdp, stamps.receive_hardware) {
            (true, _) if self.is_veth() => "only for packets that a card has stamped: a veth has no clock",
            (true, _) => "XDP can read the driver's receive stamps",
            (false, true) => "the card stamps packets, but its driver does not pass the stamps to XDP",
            (false, false) => "none: packets are stamped at the hook",
        };
        self.finding("hardware time", CheckState::Info, text)
    }

    /// Returns a finding for each tap.
    fn taps(&self, attached: &AttachedPrograms, link: &LinkRecord) -> Vec<Finding> {
        vec![self.xdp_tap(attached, link), self.hook_tap(attached), self.tc_tap(), self.packet_tap()]
    }

    fn xdp_tap(&self, attached: &AttachedPrograms, link: &LinkRecord) -> Finding {
        let subject = "tap xdp";
        if let Some(why) = KernelFeature::Xdp.probe().why() {
            return self.finding(subject, CheckState::Warn, "no").why(why);
        }
        let tracing = trace::refusal().is_none();
        match (&attached.xdp, self.abilities) {
            (Some(name), _) if attached.xdp_is_trawl => {
                let mode = link.xdp.first().map_or("", |present| present.mode.name());
                self.finding(
                    subject,
                    CheckState::Ok,
                    format!("yes: a second capture joins the first ({name}, {mode} mode)"),
                )
            }
            (Some(name), _) if tracing => self.finding(
                subject,
                CheckState::Ok,
                format!("yes: traces the attached program {name} at entry and exit"),
            ),
            (Some(name), _) => self
                .finding(subject, CheckState::Warn, "no")
                .why(format!("the program {name} is attached, and this host refuses tracing programs"))
                .fix(if attached.hooks.is_empty() {
                    "use --tap tc or --tap packet, which see what the program passes"
                } else {
                    "use --tap tailcall"
                }),
            (None, Some(abilities)) if !abilities.native() => self.finding(subject, CheckState::Ok, "yes, in skb mode"),
            (None, Some(_)) => self.finding(subject, CheckState::Ok, "yes, in native mode"),
            (None, None) => self.finding(
                subject,
                CheckState::Ok,
                "yes, in native mode if the driver supports it, otherwise in skb mode",
            ),
        }
    }

    fn hook_tap(&self, attached: &AttachedPrograms) -> Finding {
        let subject = "tap tailcall";
        match (attached.hooks.first(), &attached.xdp) {
            (Some(hook), _) => self.finding(subject, CheckState::Ok, format!("yes, through {}", hook.name)),
            (None, None) => self.finding(subject, CheckState::Info, "no XDP program is attached"),
            (None, Some(_)) if attached.xdp_is_trawl => {
                self.finding(subject, CheckState::Info, "the attached program is trawl's own")
            }
            (None, Some(name)) => {
                let finding = self
                    .finding(subject, CheckState::Warn, "no")
                    .why(format!("{name} has no program array with an entry for each of the 5 XDP actions"));
                match attached.with_hooks.clone() {
                    Some(reload) => finding.fix(format!("load the program with hooks: {reload}; or name its map with --hook PATH; or capture after XDP with --tap packet")),
                    None => finding,
                }
            }
        }
    }

    fn tc_tap(&self) -> Finding {
        let subject = "tap tc";
        match KernelFeature::Tcx.probe().why() {
            None => self.finding(subject, CheckState::Ok, "yes, by tcx"),
            Some(why) if KernelFeature::Bpf.probe().is_supported() => {
                self.finding(subject, CheckState::Ok, "yes, by clsact").why(format!("no tcx: {why}"))
            }
            Some(why) => self.finding(subject, CheckState::Warn, "no").why(why),
        }
    }

    fn packet_tap(&self) -> Finding {
        let subject = "tap packet";
        match KernelFeature::PacketV3.probe().why() {
            None => self.finding(subject, CheckState::Ok, "yes"),
            Some(why) => self.finding(subject, CheckState::Problem, "no").why(why).fix("run trawl as root"),
        }
    }
}
