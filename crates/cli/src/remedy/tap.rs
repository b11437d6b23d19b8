//! What fixes an error of a tap.

use super::reload_command;

pub(super) fn words(fix: &trawl_tap::fix::Fix) -> String {
    use trawl_tap::fix::Fix;
    match fix {
        Fix::NoCpu => "leave out --cpu, or use --tap packet".to_owned(),
        Fix::NoCpuButQueue => "leave out --cpu; --queue chooses by queue".to_owned(),
        Fix::ReadInner => "leave out --inner, or record and use: trawl read --inner".to_owned(),
        Fix::NoInner => "leave out --inner, or use --tap packet".to_owned(),
        Fix::OtherPrefix => "--file-prefix names another one; ls /run/dpdk shows those that were started".to_owned(),
        Fix::ShareMemory => "start it without --no-huge and without --in-memory".to_owned(),
        Fix::MempoolOps => "start it with --mbuf-pool-ops-name=ring_mp_mc".to_owned(),
        Fix::FilterLater => "record without it, and use: trawl read -r FILE -w FILTERED EXPRESSION".to_owned(),
        Fix::FollowShorter => {
            "use a shorter filter, or record what matches with trawl capture, which filters in user space".to_owned()
        }
        Fix::JudgeBoth => {
            "use --at both instead of --filter-at entry: trawl then filters both records by the entry's".to_owned()
        }
        Fix::OneQueue => "choose one queue with --queue, or one port".to_owned(),
        Fix::AllInterfaces => "leave out -i to look at all".to_owned(),
        Fix::ListReasons => "--reason help lists those it has".to_owned(),
        Fix::ExitOnly => "end another capture, or record at one end only: --at exit".to_owned(),
        Fix::NoAt { reload } => format!("leave out --at, or load the program with hooks: {}", reload_command(reload)),
        Fix::NoFilterAt { reload } => format!("leave out --filter-at, or load the program with hooks: {}", reload_command(reload)),
        Fix::UseXdp => "use --tap xdp".to_owned(),
        Fix::NameHook => "name one: --hook PATH".to_owned(),
        Fix::LoadWithHooks { reload } => format!(
            "load the program with hooks: {}; or name its map with --hook PATH; or capture after XDP with --tap packet",
            reload_command(reload)
        ),
        Fix::HooksAndTap { reload } => format!(
            "load it with hooks and use --tap hook: {}; or capture after XDP with --tap packet",
            reload_command(reload)
        ),
        Fix::AtExit => "leave out --filter-at, or use --at exit".to_owned(),
        Fix::AtExitOrBoth => "use --at exit or --at both".to_owned(),
        Fix::PacketRing => "use --packet-ring v3 or v2, or leave out --time hw".to_owned(),
        Fix::Steal => "add --steal to use it anyway".to_owned(),
        Fix::SentTap => "use --tap tc or --tap packet".to_owned(),
        Fix::NoAtOption => "leave out --at".to_owned(),
        Fix::NoFilterAtOption => "leave out --filter-at".to_owned(),
        Fix::NoVerdict => "leave out --verdict, or use --tap xdp or --tap hook".to_owned(),
        Fix::OwnProgram => "--tap xdp attaches an XDP program of trawl's own, which sees them".to_owned(),
        Fix::NoProgram => "leave out --program, or use --tap xdp".to_owned(),
        Fix::NoHardwareTime => "leave out --time hw".to_owned(),
 Fix::NoPoll => "leave out --time poll, or use --tap xdp, hook or tc".to_owned(),
        Fix::NoQueue => "leave out --queue".to_owned(),
        Fix::NotSkb => "leave out --mode skb".to_owned(),
        Fix::PacketOrIn => "use --tap packet, or -Q in for received packets".to_owned(),
        Fix::NoProgramOrLoad => "leave out --program, or attach one: trawl xdp load".to_owned(),
        Fix::UseHook => "look through the hooks of the chain's programs: --tap hook".to_owned(),
        Fix::NameProgram => "name one of these with --program, or use --program all".to_owned(),
        Fix::WithTypes => "compile it with -g, or use --tap packet".to_owned(),
        Fix::TapWithVerdict => "capture with --tap xdp or --tap hook, and without --at entry".to_owned(),
        Fix::UsePacket => "try --tap packet".to_owned(),
        Fix::HookAt { path } => format!("if a program here makes tail calls through it: --hook {}", path.display()),
        Fix::TapHook => "use --tap hook".to_owned(),
        Fix::TapsAfterXdp => "use --tap tc or --tap packet, which see what the program passes".to_owned(),
        Fix::MountOrNamespace { command } => format!("{command}; or use --netns instead of ip netns exec"),
        Fix::HooksWithoutTracing => "trawl xdp load --replace --keep-maps --tappable gives an attached program hooks for --tap hook; --tap tc and --tap packet need none".to_owned(),
        Fix::NameInterface => "name the interface with -i, or use --tap packet or --tap tc".to_owned(),
        Fix::QueueOption => "use --queue, or --tap packet or --tap tc".to_owned(),
        Fix::TcOrPacket => "use --tap tc or --tap packet".to_owned(),
        Fix::OnlyPacket => "use --tap packet".to_owned(),
        Fix::NetlinkSocket => "such a filter is for netlink sockets".to_owned(),
        Fix::InboundOrTap => "inbound and outbound work here; for the others use --tap tc or --tap packet".to_owned(),
        Fix::FewerCaptures => "end another capture, or capture on fewer interfaces at a time".to_owned(),
        Fix::BuildHelper => "make build-dpdk (apt-get install libdpdk-dev), with the same version of DPDK as the application's".to_owned(),
        Fix::InitPdump => "it has to call rte_pdump_init(), as dpdk-testpmd does".to_owned(),
        Fix::EndOtherCapture => "end that one first".to_owned(),
        Fix::MoreHugePages => "sysctl -w vm.nr_hugepages=NUMBER allows more, and the application must be allowed to take them".to_owned(),
        Fix::EndOneCapture => "end one of them".to_owned(),
        Fix::RestartCaptures => "end all of these captures, then start them again".to_owned(),
        Fix::SplitCapture => "split the capture in two".to_owned(),
        Fix::NewerKernel { version } => format!("use Linux {version} or newer"),
        Fix::ListQueues { interface } => format!("ethtool -l {interface} tells how many are in use"),
        Fix::NameProgArray => "name the BPF_MAP_TYPE_PROG_ARRAY that the program jumps through".to_owned(),
        Fix::LargerProgArray => "give the map 5 entries, as xdpcap asks for".to_owned(),
    }
}
