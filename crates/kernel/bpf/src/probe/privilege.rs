//! The capabilities of this process, as far as capturing needs any.

/// A capability that something in trawl needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    Bpf,
    Perfmon,
    NetAdmin,
    NetRaw,
    SysAdmin,
    SysResource,
}

impl Capability {
    pub const ALL: [Self; 6] = [
        Self::Bpf,
        Self::Perfmon,
        Self::NetAdmin,
        Self::NetRaw,
        Self::SysAdmin,
        Self::SysResource,
    ];
    /// What loading and attaching network programs takes.
    pub const FOR_BPF: [Self; 3] = [Self::Bpf, Self::Perfmon, Self::NetAdmin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bpf => "CAP_BPF",
            Self::Perfmon => "CAP_PERFMON",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysResource => "CAP_SYS_RESOURCE",
        }
    }

    /// What it is good for here.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Bpf => "create maps, load programs",
            Self::Perfmon => "load programs that read packets through pointers",
            Self::NetAdmin => "attach programs to interfaces",
            Self::NetRaw => "packet sockets (the packet tap)",
            Self::SysAdmin => "enter network namespaces, open objects of others by their number",
            Self::SysResource => "raise the limit on locked memory, which kernels before 5.11 need",
        }
    }

    fn bit(self) -> u32 {
        match self {
            Self::NetAdmin => 12,
            Self::NetRaw => 13,
            Self::SysAdmin => 21,
            Self::SysResource => 24,
            Self::Perfmon => 38,
            Self::Bpf => 39,
        }
    }
}

/// Whether this process has it in effect. CAP_SYS_ADMIN stands in for the two that were split from it.
pub fn has_capability(capability: Capability) -> bool {
    let effective = effective();
    let has = |c: Capability| effective >> c.bit() & 1 != 0;
    has(capability)
        || matches!(capability, Capability::Bpf | Capability::Perfmon) && has(Capability::SysAdmin)
}

pub fn missing_capabilities(of: &[Capability]) -> Vec<Capability> {
    of.iter().copied().filter(|c| !has_capability(*c)).collect()
}

/// What is missing of these, as a reason and what to do; `None` where nothing is.
pub fn lack_of(capabilities: &[Capability]) -> Option<(String, String)> {
    let missing = missing_capabilities(capabilities);
    let purposes: Vec<String> = missing
        .iter()
        .map(|one| format!("{} ({})", one.name(), one.purpose()))
        .collect();
    let names: Vec<&str> = missing.iter().map(|one| one.name()).collect();
    (!missing.is_empty()).then(|| {
        (
            format!("this process lacks {}", purposes.join(", ")),
            format!("run it as root, or with {}", names.join(", ")),
        )
    })
}

fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    parse_effective(&status).unwrap_or(0)
}

fn parse_effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_found_among_the_lines() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000008000001000\n";
        assert_eq!(parse_effective(status), Some(1 << 39 | 1 << 12));
        assert_eq!(parse_effective("Name:\tx\n"), None);
    }
}
