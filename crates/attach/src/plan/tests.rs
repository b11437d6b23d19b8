//! Tests of the plan, without a kernel.

use XdpMode::{Native, Offload, Skb};

use super::*;

const PLAIN: Newcomer = Newcomer { hooks: false, frags: false, alone: false };
const ALONE: Newcomer = Newcomer { alone: true, ..PLAIN };
const REPLACE: AttachRequest = AttachRequest {
    mode: None,
    replace: true,
    maps: OldMaps::Drop,
    priority: None,
    tappable: false,
    careful: false,
    keep_guard: false,
};

fn other() -> ProgramOwner {
    ProgramOwner::Other { name: Some("theirs".to_owned()) }
}

fn installed(chain: Option<Chain>) -> ProgramOwner {
    ProgramOwner::Installed { name: "filter".to_owned(), source: "filter.o".to_owned(), chain }
}

fn chain(programs: usize, frags: bool) -> ProgramOwner {
    installed(Some(Chain { programs, frags }))
}

fn present(mode: XdpMode, hold: Hold, kind: ProgramOwner) -> Present {
    Present { mode, program_id: 7, hold, kind }
}

fn with(present: Present) -> Snapshot {
    Snapshot { present: vec![present], ..Snapshot::default() }
}

fn asks(mode: XdpMode) -> AttachRequest {
    AttachRequest { mode: Some(mode), ..AttachRequest::default() }
}

fn attach(mode: XdpMode, means: AttachMethod) -> AttachStep {
    AttachStep::Attach { mode, means }
}

fn old(mode: XdpMode) -> XdpAttachment {
    XdpAttachment { mode, program_id: 7 }
}

fn remove(mode: XdpMode) -> AttachStep {
    AttachStep::Remove { old: old(mode) }
}

fn exchange(mode: XdpMode) -> AttachStep {
    AttachStep::Exchange { old: old(mode) }
}

/// Returns the plan of a program directly on the interface.
fn alone(now: &Snapshot, request: &AttachRequest) -> AttachPlan {
    match position(now, ALONE, request) {
        Ok(AttachPosition::Alone(plan)) => plan,
        found => panic!("{found:?}"),
    }
}

#[test]
fn empty_interface_gets_a_plain_attach() {
    let empty = Snapshot::default();
    let plan = alone(&empty, &AttachRequest::default());
    assert_eq!(plan.mode, Native);
    assert_eq!(plan.steps, [attach(Native, AttachMethod::Link)]);
    assert_eq!(plan.fallback, Fallback::NoDriverSupport);
    assert_eq!(plan.in_skb_mode, [attach(Skb, AttachMethod::Link)]);
}

#[test]
fn requested_mode_has_no_fallback() {
    for mode in [Native, Skb, Offload] {
        let plan = alone(&Snapshot::default(), &asks(mode));
        assert_eq!(plan.steps, [attach(mode, AttachMethod::Link)]);
        assert_eq!((plan.fallback, plan.in_skb_mode.len()), (Fallback::Never, 0));
    }
}

#[test]
fn driver_with_native_xdp_gets_no_skb_program_unasked() {
    let now = Snapshot { native: Some(true), ..Snapshot::default() };
    assert_eq!(alone(&now, &AttachRequest::default()).fallback, Fallback::Never);
    // A capture accepts any mode.
    let capture = steps(&now, None, AttachMethod::LinkOnly);
    assert_eq!(capture.fallback, Fallback::Always);
    assert_eq!(capture.in_skb_mode, [attach(Skb, AttachMethod::LinkOnly)]);
}

#[test]
fn attached_program_stays_unless_replace_is_requested() {
    for kind in [other(), installed(None)] {
        let by = present(Native, Hold::Netlink, kind);
        let found = position(&with(by.clone()), PLAIN, &AttachRequest::default());
        assert_eq!(found, Err(Conflict::Occupied { by }));
    }
    // In either mode: the kernel allows a program in one only.
    let by = present(Skb, Hold::Netlink, other());
    let found = position(&with(by.clone()), PLAIN, &asks(Native));
    assert_eq!(found, Err(Conflict::Occupied { by }));
}

#[test]
fn card_holds_a_program_of_its_own() {
    let on_card = with(present(Offload, Hold::Netlink, other()));
    assert_eq!(alone(&on_card, &asks(Native)).steps, [attach(Native, AttachMethod::Link)]);
    let in_driver = with(present(Native, Hold::Netlink, other()));
    assert_eq!(alone(&in_driver, &asks(Offload)).steps, [attach(Offload, AttachMethod::Link)]);
    assert!(position(&on_card, ALONE, &asks(Offload)).is_err());
}

#[test]
fn replacing_leaves_no_gap_where_none_is_needed() {
    for (hold, mode, expected) in [
        (Hold::Netlink, Native, vec![exchange(Native)]),
        (Hold::OwnLink, Native, vec![exchange(Native)]),
        // The link ends with its process.
        (Hold::OtherLink, Native, vec![remove(Native), attach(Native, AttachMethod::Link)]),
        (Hold::Netlink, Skb, vec![remove(Skb), attach(Native, AttachMethod::Link)]),
        (Hold::OwnLink, Skb, vec![remove(Skb), attach(Native, AttachMethod::Link)]),
    ] {
        let now = with(present(mode, hold, other()));
        assert_eq!(alone(&now, &REPLACE).steps, expected, "{hold:?} {mode:?}");
    }
}

#[test]
fn skb_program_is_replaced_in_its_mode_if_native_mode_is_refused() {
    let now = with(present(Skb, Hold::OwnLink, installed(None)));
    let plan = alone(&now, &REPLACE);
    assert_eq!(plan.steps, [remove(Skb), attach(Native, AttachMethod::Link)]);
    // Its link has ended with its removal.
    assert_eq!(plan.in_skb_mode, [attach(Skb, AttachMethod::Link)]);
    // A driver without native mode is not asked.
    let now = Snapshot { native: Some(false), ..now };
    let plan = alone(&now, &REPLACE);
    assert_eq!((plan.mode, plan.steps), (Skb, vec![exchange(Skb)]));
}

#[test]
fn dispatcher_is_made_if_the_kernel_supports_it() {
    let now = Snapshot { dispatchers: true, ..Snapshot::default() };
    let Ok(AttachPosition::NewDispatcher(plan)) = position(&now, PLAIN, &AttachRequest::default()) else {
        panic!("a chain can begin here");
    };
    assert_eq!(plan.steps, [attach(Native, AttachMethod::Netlink)]);
    let hooks = Newcomer { hooks: true, ..PLAIN };
    for new in [hooks, ALONE] {
        let found = position(&now, new, &AttachRequest::default());
        assert!(matches!(found, Ok(AttachPosition::Alone(_))), "{new:?}: {found:?}");
    }
    let found = position(&now, PLAIN, &asks(Offload));
    assert!(matches!(found, Ok(AttachPosition::Alone(_))), "{found:?}");
}

#[test]
fn dispatcher_replaces_a_program() {
    let now = |hold| Snapshot { dispatchers: true, ..with(present(Native, hold, installed(None))) };
    let steps = |hold| match position(&now(hold), PLAIN, &REPLACE) {
        Ok(AttachPosition::NewDispatcher(plan)) => plan.steps,
        found => panic!("{found:?}"),
    };
    assert_eq!(steps(Hold::Netlink), [exchange(Native)]);
    // Netlink cannot change the program of a link, not even of trawl's own.
    for hold in [Hold::OwnLink, Hold::OtherLink] {
        let expected = [remove(Native), attach(Native, AttachMethod::Netlink)];
        assert_eq!(steps(hold), expected);
    }
}

#[test]
fn programs_join_a_dispatcher_in_its_mode() {
    let now = |programs| with(present(Skb, Hold::Netlink, ProgramOwner::Dispatcher { programs }));
    let Ok(AttachPosition::Dispatcher(plan)) = position(&now(2), PLAIN, &AttachRequest::default()) else {
        panic!("there is room");
    };
    assert_eq!((plan.mode, plan.steps), (Skb, vec![exchange(Skb)]));
    assert_eq!(plan.fallback, Fallback::Never);
    assert_eq!(position(&now(2), PLAIN, &asks(Native)), Err(Conflict::OtherMode { mode: Skb }));
    assert_eq!(position(&now(10), PLAIN, &AttachRequest::default()), Err(Conflict::ChainFull { programs: 10 }));
    let hooks = Newcomer { hooks: true, ..PLAIN };
    let found = position(&now(2), hooks, &AttachRequest::default());
    assert!(matches!(found, Err(Conflict::HooksInDispatcher { .. })));
    let found = position(&now(2), ALONE, &AttachRequest::default());
    assert!(matches!(found, Err(Conflict::Occupied { .. })));
}

#[test]
fn programs_join_a_chain_of_jumps() {
    let now = |programs, frags| with(present(Native, Hold::OwnLink, chain(programs, frags)));
    let frags = Newcomer { frags: true, ..PLAIN };
    for (has, new, expected) in [
        (false, PLAIN, Ok(AttachPosition::Jumps { linear: false })),
        (true, frags, Ok(AttachPosition::Jumps { linear: false })),
        (false, frags, Ok(AttachPosition::Jumps { linear: true })),
        (true, PLAIN, Err(Conflict::PacketsInPieces)),
    ] {
        let found = position(&now(1, has), new, &AttachRequest::default());
        assert_eq!(found, expected);
    }
    assert_eq!(position(&now(1, false), PLAIN, &asks(Skb)), Err(Conflict::OtherMode { mode: Native }));
    assert_eq!(
        position(&now(LONGEST_CHAIN, false), PLAIN, &AttachRequest::default()),
        Err(Conflict::ChainFull { programs: 10 })
    );
    let found = position(&now(1, false), ALONE, &AttachRequest::default());
    assert!(matches!(found, Err(Conflict::Occupied { .. })));
    let found = position(&now(3, false), PLAIN, &REPLACE);
    assert!(matches!(found, Ok(AttachPosition::Alone(_))), "the whole chain's place");
}

#[test]
fn guard_is_not_replaced_by_mistake() {
    let now = Snapshot { guard: Some(7), ..with(present(Native, Hold::OwnLink, chain(1, true))) };
    let careful = AttachRequest { keep_guard: true, ..REPLACE };
    assert_eq!(position(&now, PLAIN, &careful), Err(Conflict::Guard { id: 7 }));
    assert!(position(&now, PLAIN, &REPLACE).is_ok(), "--yes");
}

#[test]
fn program_above_on_a_bridge_or_bond_is_a_conflict() {
    let now = Snapshot { above: Some("bond0".to_owned()), ..Snapshot::default() };
    let interface = "bond0".to_owned();
    let found = position(&now, PLAIN, &AttachRequest::default());
    assert_eq!(found, Err(Conflict::Above { interface }));
}
