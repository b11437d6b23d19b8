//! What fixes an error, in words: the one place below which nothing names an option or a command of trawl.

mod tap;

use std::any::Any;

use trawl_kernel::error::Remedy;
use trawl_program::again::{Again, Reload};

/// What the person can do, usually a command.
pub fn words(remedy: &dyn Remedy) -> Option<String> {
    let remedy: &dyn Any = remedy;
    if let Some(fix) = remedy.downcast_ref::<trawl_kernel::fix::Fix>() {
        return Some(of_kernel(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_attach::fix::Fix>() {
        return Some(of_attach(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_program::fix::Fix>() {
        return Some(of_program(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_balance::fix::Fix>() {
        return Some(of_balance(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_gen::fix::Fix>() {
        return Some(of_gen(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_guard::fix::Fix>() {
        return Some(of_guard(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_lab::fix::Fix>() {
        return Some(of_lab(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_store::fix::Fix>() {
        return Some(of_store(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_agent::fix::Fix>() {
        return Some(of_agent(fix));
    }
    if let Some(fix) = remedy.downcast_ref::<trawl_tap::fix::Fix>() {
        return Some(tap::words(fix));
    }
    None
}

fn of_kernel(fix: &trawl_kernel::fix::Fix) -> String {
    use trawl_kernel::fix::Fix;
    match fix {
        Fix::Root { capabilities } => root(capabilities),
        Fix::RunAsRoot => "run trawl as root".to_owned(),
        Fix::TryAgain => "try again".to_owned(),
        Fix::MoreOpenFiles => "raise the limit of open files: ulimit -n".to_owned(),
        Fix::PacketEngine => "use --engine packet".to_owned(),
        Fix::ShorterFilter => "use a shorter expression, or --tap packet".to_owned(),
        Fix::NoDirection => "leave out -Q".to_owned(),
        Fix::NewerLibpcap => {
            "libpcap has them all since version 1.5: name a newer one with --libpcap PATH"
                .to_owned()
        }
        Fix::InstallLibpcap => {
            "apt install libpcap0.8, or name a library with --libpcap PATH".to_owned()
        }
        Fix::LibpcapModule { module } => format!(
            "this needs the kernel module {module}: modprobe {module}, and a libpcap built with it (--libpcap PATH; see docs/peers.md)"
        ),
        Fix::LibpcapWithDpdk => {
            "this needs a libpcap that was built with DPDK (--libpcap PATH); --tap dpdk needs none"
                .to_owned()
        }
        Fix::NotPromiscuous => "leave the mode as it is: -p".to_owned(),
        Fix::RootOrNotPromiscuous => {
            "run as root, or with CAP_NET_RAW; or leave the mode as it is: -p".to_owned()
        }
        Fix::DestinationMac => "give --dst-mac".to_owned(),
        Fix::LargerSocketFilter { bytes } => {
            format!("sysctl -w net.core.optmem_max={bytes}, or use --tap tc")
        }
        Fix::SmallerRing => "choose a smaller --ring-size".to_owned(),
        Fix::KeepUser => "run it as root, or leave out -Z".to_owned(),
        Fix::FewerFlows => "choose fewer flows with --max-flows".to_owned(),
        Fix::LessMemory { kib } => {
            format!("{kib} KiB may be too much here: choose less with --memory")
        }
        Fix::MemoryBetween {
            least_kib,
            most_gib,
        } => format!("choose --memory between {least_kib} KiB and {most_gib} GiB"),
        Fix::MountBpf { at } => {
            format!("this requires root (CAP_SYS_ADMIN): mount -t bpf -o mode=0700 bpf {at}")
        }
        Fix::NoBpfFileSystem { at } => {
            format!("no BPF file system is mounted: mount -t bpf -o mode=0700 bpf {at}")
        }
        Fix::DirectoryUnder { at } => format!("name a directory under {at}"),
        Fix::PinUnder { at } => format!("name a pin under {at}"),
        Fix::IsInterfaceUp => "is the interface up?".to_owned(),
        Fix::IsOtherEndUp => "is the other end up?".to_owned(),
        Fix::KernelSays { words } => format!("the kernel says: {words}"),
        Fix::OneOf { names } => format!("those that exist: {names}"),
        Fix::ListUsers => "'getent passwd' lists those there are".to_owned(),
        Fix::ConfirmFirst => "confirm it first, or wait".to_owned(),
        Fix::RemoveLeftover { path } => {
            format!("if it was left behind by a crash: rm {}", path.display())
        }
        Fix::ListNamespaces => "ip netns list shows the names".to_owned(),
        Fix::MoreLockedMemory => {
            "the limit of locked memory may be too low: ulimit -l unlimited".to_owned()
        }
        Fix::ListLibraries => "ldd tells which libraries it needs itself".to_owned(),
        Fix::LargerMtu => "raise the interface's MTU".to_owned(),
    }
}

fn of_agent(fix: &trawl_agent::fix::Fix) -> String {
    use trawl_agent::fix::Fix;
    match fix {
        Fix::FormOfDesired => {
            "the guide (Agents) shows the form: [[capture]] with name, interfaces and store"
                .to_owned()
        }
        Fix::FormOfPolicy => "man trawl-agent lists the keys of a policy".to_owned(),
        Fix::FormOfSelector => "write for example 'web*', role=edge or 'web*,role=edge'".to_owned(),
    }
}

fn of_attach(fix: &trawl_attach::fix::Fix) -> String {
    use trawl_attach::fix::Fix;
    match fix {
        Fix::NativeOrSkb => "use --mode native or --mode skb".to_owned(),
        Fix::Skb => "use --mode skb".to_owned(),
        Fix::ShowPrograms { interface } => format!("trawl xdp status -i {interface} shows which"),
        Fix::ShowAllPrograms => "trawl xdp status --all-namespaces shows which".to_owned(),
        Fix::ShowOffloads { interface } => {
            format!("trawl doctor -i {interface} shows the offloads; or use --mode skb")
        }
        Fix::CommandOrSkb { command } => format!("{command}; or use --mode skb"),
        Fix::SmallerMtu { command } => format!(
            "{command}; or compile the program with SEC(\"xdp.frags\") if it handles packets in several pieces; or use --mode skb"
        ),
        Fix::UnloadAll { interface } => format!("trawl xdp unload {interface} --all removes it"),
    }
}

fn of_program(fix: &trawl_program::fix::Fix) -> String {
    use trawl_program::fix::Fix;
    match fix {
        Fix::HooksInDispatcher { interface } => format!("leave out --tappable, for a bundled program with --prio N: trawl capture -i {interface} --program NAME sees the programs of this chain without hooks; --replace takes the whole chain's place; trawl xdp unload {interface} --all removes it"),
        Fix::ModeOfChain { mode } => format!("use --mode {mode}, or --replace to take the whole chain's place"),
        Fix::ChainFull { interface } => format!("trawl xdp unload {interface} ID makes room; trawl xdp status shows the programs"),
        Fix::GuardAttached => "--prio N puts a program before or after it, --yes replaces it anyway".to_owned(),
        Fix::JoinDispatcher { interface } => format!("--prio N puts the program into it; --replace takes the whole chain's place; trawl xdp unload {interface} --all removes it"),
        Fix::Occupied { interface, id, chain } => occupied(interface, *id, *chain),
        Fix::NotTappable => "load it without --tappable".to_owned(),
        Fix::LoadWithHooks => "add --tappable, which loads it without a dispatcher".to_owned(),
        Fix::NotTappableHere => "give the map another name, or load it without --tappable".to_owned(),
        Fix::KeepMaps { from_file } => match from_file {
            true => "--keep-maps gives them to the new program, --yes replaces it anyway".to_owned(),
            false => "--yes replaces it anyway".to_owned(),
        },
        Fix::NewMaps => "--replace without --keep-maps starts with new maps".to_owned(),
        Fix::NameProgram { names } => format!("name one with --prog: {names}"),
        Fix::NotOffloaded => "leave out --mode hw".to_owned(),
        Fix::NoHooksNeeded => "leave out --tappable to capture what arrives".to_owned(),
        Fix::HooksInChain => "load the program with hooks: trawl xdp load IF FILE.o --keep-maps --tappable --prio N, then unload the one without".to_owned(),
        Fix::OtherFile { interface, file } => format!("name the file that it was loaded from; trawl xdp load {interface} {file} --replace --keep-maps --tappable replaces it"),
        Fix::NameToUnload { programs } => format!("name the program to remove: {programs}, or --all"),
        Fix::UnloadFor { interface, id } => format!("trawl xdp unload {interface} {id} removes both"),
        Fix::OtherPriority => "choose another place for it with --prio".to_owned(),
        Fix::TouchNone => "drop, pass and aborted with --touch none need none".to_owned(),
        Fix::PeerUp { command } => format!("{command}; or use --mode skb"),
        Fix::SkbSends => "--mode skb sends them through the network stack".to_owned(),
        Fix::NoConfirm => "leave out --confirm".to_owned(),
        Fix::LoadRoute { interface } => format!("trawl route load {interface}"),
        Fix::RouteBelow { interface } => format!("trawl route load {interface} routes all VLANs on it too"),
        Fix::AttachAnyway => "--yes attaches it anyway".to_owned(),
        Fix::ReplaceAnyway => "--yes replaces it anyway, --confirm 60s replaces it for a time".to_owned(),
        Fix::UnloadAnyway => "--yes removes it anyway, --confirm 60s removes it for a time".to_owned(),
        Fix::UnloadGuard { interface } => format!("trawl guard unload {interface} removes it, and so does --yes"),
        Fix::IsCpuOnline => "is the CPU on line?".to_owned(),
        Fix::CompileWithFrags => "compile it with SEC(\"xdp.frags\"), or load it first".to_owned(),
        Fix::OtherDirectory { remove } => format!("name another directory, or, if it is no longer needed, {remove}"),
        Fix::EndCapture => "end a capture first".to_owned(),
        Fix::ReloadWithOther => "unload its programs, and load them again with what loaded them".to_owned(),
        Fix::RootAndLinux { version } => format!("this requires root (CAP_SYS_ADMIN) and Linux {version} or newer"),
    }
}

fn of_balance(fix: &trawl_balance::fix::Fix) -> String {
    use trawl_balance::fix::Fix;
    match fix {
        Fix::Load { interface } => format!("trawl balance load {interface}"),
        Fix::FewerServices => "use fewer virtual addresses or backends".to_owned(),
        Fix::Reload => "trawl balance unload IF, then load it again".to_owned(),
        Fix::ApplyAnyway => "--yes applies it anyway".to_owned(),
        Fix::CheckPort => "--port N names the one to check".to_owned(),
        Fix::CheckTcpPort => "--port N names a TCP port to check".to_owned(),
        Fix::FewerFlows { default } => {
            format!("choose fewer flows with --flows N; the default is {default}")
        }
        Fix::ListVips => "trawl balance vip list shows them".to_owned(),
        Fix::Tunnel => "forward by ipip or gue".to_owned(),
    }
}

fn of_gen(fix: &trawl_gen::fix::Fix) -> String {
    use trawl_gen::fix::Fix;
    match fix {
        Fix::OtherSource => {
            "all source ports are taken: open fewer connections, or give another --src".to_owned()
        }
        Fix::InterfaceOrDestination => "give -i IF or --dst ADDRESS".to_owned(),
        Fix::Route => "give -i IF, --src and --dst-mac, or add a route".to_owned(),
        Fix::Address { option } => format!("give --{option} ADDRESS"),
        Fix::CheckServer => "check that a server listens there: ss -lnt".to_owned(),
    }
}

fn of_guard(fix: &trawl_guard::fix::Fix) -> String {
    use trawl_guard::fix::Fix;
    match fix {
        Fix::DenyWhat => "name what to deny, write all = true in it, or --all".to_owned(),
        Fix::KeepSession { rule, namespace } => keep_session(rule, namespace.as_deref()),
        Fix::ApplyAnyway => {
            "apply anyway: --yes; or apply for a time, unless confirmed: --confirm 60s".to_owned()
        }
        Fix::ReplaceAnyway => "--yes replaces it anyway".to_owned(),
        Fix::LoadAgain { interface } => format!(
            "trawl guard load {interface} --replace --yes starts a guard without rules; trawl guard apply FILE.toml gives it those of a file"
        ),
        Fix::Outside { namespace } => format!(
            "give the command outside of ip netns exec, with --netns {}",
            namespace.as_deref().unwrap_or("NAME")
        ),
        Fix::Load { interface } => format!("trawl guard load {interface}"),
        Fix::LeaveOneOut => "leave one of them out".to_owned(),
        Fix::FewerRanges => "fewer overlapping ranges of ports take less room".to_owned(),
        Fix::OtherVersion => "unload it with the version that loaded it".to_owned(),
        Fix::FewerRules => "use fewer rules".to_owned(),
    }
}

fn of_lab(fix: &trawl_lab::fix::Fix) -> String {
    use trawl_lab::fix::Fix;
    match fix {
        Fix::Down { lab } => format!("trawl lab down {lab}"),
        Fix::Up => "trawl lab up makes one".to_owned(),
    }
}

fn of_store(fix: &trawl_store::fix::Fix) -> String {
    use trawl_store::fix::{Fix, Kind};
    match fix {
        Fix::LargerSpool => "allow more with --spool-size, or --spool-full evict".to_owned(),
        Fix::OtherSpool => "name another directory with --spool".to_owned(),
        Fix::DirectoryUrl => "write file:///DIRECTORY".to_owned(),
        Fix::StoreUrl => "use file://, s3://, gs:// or az://".to_owned(),
        Fix::PushAgain => "what is not stored stays in the spool: try again".to_owned(),
        Fix::BuildWithCloud => "build it with --features cloud, as make build does".to_owned(),
        Fix::Access { store: Kind::S3 } => {
            "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and AWS_ENDPOINT for a server of your own".to_owned()
        }
        Fix::Access { store: Kind::Google } => {
            "set GOOGLE_SERVICE_ACCOUNT to the file of a service account's key, and GOOGLE_BASE_URL for a server of your own".to_owned()
        }
        Fix::Access { store: Kind::Azure } => {
            "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, and AZURE_STORAGE_ENDPOINT for a server of your own".to_owned()
        }
    }
}

fn root(capabilities: &str) -> String {
    match capabilities {
        "" => "this requires root".to_owned(),
        some => format!("this requires root ({some})"),
    }
}

fn occupied(interface: &str, id: u32, chain: Option<bool>) -> String {
    let join = match chain {
        Some(true) => "--prio N puts it into the chain there; ",
        Some(false) => "to have both, load each with --prio N; ",
        None => "",
    };
    format!(
        "{join}--replace puts the new one in its place; trawl xdp unload {interface} {id} removes it"
    )
}

fn keep_session(rule: &str, namespace: Option<&str>) -> String {
    let place = namespace.map_or(String::new(), |label| format!(" --netns {label}"));
    format!(
        "keep it: trawl guard allow{rule}{place}; or apply anyway: --yes; or apply for a time, unless confirmed: --confirm 60s"
    )
}

/// The command that loads a program once more, with hooks.
pub fn reload_command(reload: &Reload) -> String {
    let Reload { interface, how } = reload;
    match how {
        Again::Unknown => {
            format!("trawl xdp load {interface} FILE.o --replace --keep-maps --tappable")
        }
        Again::Guard => format!("trawl guard load {interface} --tappable"),
        Again::Route => format!("trawl route load {interface} --tappable"),
        Again::Balance => format!("trawl balance load {interface} --tappable"),
        Again::Helper => {
            "it is trawl's own and lets every packet pass: capture with --tap tc".to_owned()
        }
        Again::Program {
            source,
            program,
            skb,
            beside,
        } => {
            let what = match program {
                Some(program) => format!("{source} --prog {program}"),
                None => source.clone(),
            };
            let mode = if *skb { " --mode skb" } else { "" };
            match beside {
                None => format!(
                    "trawl xdp load {interface} {what} --replace --keep-maps --tappable{mode}"
                ),
                // Of two programs with the same maps the one without hooks goes when the other one is there.
                Some(beside) => {
                    let priority = beside
                        .priority
                        .map_or_else(String::new, |priority| format!(" --prio {priority}"));
                    format!(
                        "trawl xdp load {interface} {what} --keep-maps --tappable{priority}{mode} && trawl xdp unload {interface} {}",
                        beside.id
                    )
                }
            }
        }
    }
}
