//! Removes redundant comparisons from a program.
//!
//! libpcap's optimiser goes by what must have happened on every way to a place, so a long `or` of
//! hosts and ports asks the protocol again for each port, and each address for each host. Here the
//! program is taken apart into questions about values ([`terms`], [`nodes`]), its ways are followed
//! with what is known on each ([`explore`]), questions about one value are gathered into one about a
//! set ([`chains`]), and the rest is put together again ([`rebuild`]). The answer is the same on
//! every packet, also on those that are too short for a question.

mod bits;
mod cells;
mod chains;
mod explore;
mod nodes;
pub(super) mod ranges;
mod rebuild;
mod terms;

use super::graph::Graph;

/// The same program with fewer questions, or the program as it is where none can be saved, or where
/// it would become much longer.
pub(super) fn ask_less(graph: Graph) -> Graph {
    // What is not in a table cannot be said in questions, and no offset that wraps says which bytes are there.
    if !graph.tables.is_empty() || graph.wraps() {
        return graph;
    }
    match rebuilt(&graph) {
        Some(better) if size(&better) <= MOST_GROWTH * size(&graph) => better,
        _ => graph,
    }
}

/// A way of its own for each knowledge takes room, and so does a set of its own for each field where
/// libpcap lets fields of several protocols share their comparisons.
const MOST_GROWTH: usize = 4;

fn rebuilt(graph: &Graph) -> Option<Graph> {
    let mut terms = terms::Terms::default();
    let mut nodes = nodes::Nodes::default();
    let root = explore::explore(graph, &mut terms, &mut nodes)?;
    let root = chains::gather(root, &terms, &mut nodes);
    rebuild::rebuild(root, &terms, &nodes)
}

fn size(graph: &Graph) -> usize {
    let in_blocks: usize = graph.blocks.iter().map(|block| block.ops.len() + 1).sum();
    let in_sets: usize = graph.sets.iter().map(|set| set.ranges().len()).sum();
    in_blocks + in_sets
}

#[cfg(test)]
mod tests {
    use crate::{Options, Target, compile, lower};

    /// The verifier warns of ways whose ranges and bits contradict each other, so there are none.
    #[test]
    fn what_never_holds_is_not_asked() {
        for never in [
            "ether[20] & 0xf0 > 0 and ether[20] & 0xf0 < 16",
            "ether[20] & 0xf0 = 0 and ether[20] & 0xf0 > 3",
            "(ether[20] & 0xc | 1) << 1 > 10 and (ether[20] & 0xc | 1) << 1 < 18",
            "(ether[20] & 3) << 2 = 5",
            "ether[len:4] = 1",
            "ether[len + 14] & 255 = ether[6] >> ether[1]",
        ] {
            let classic = compile(never, &Options::default()).unwrap();
            for target in [Target::xdp(), Target::tc()] {
                let lowered = lower(&classic, &target).unwrap();
                // The tag beside a packet is looked at first, at tc.
                assert!(
                    lowered.stats.checks == 0 && lowered.insns.len() < 16,
                    "{never}: {lowered:?}"
                );
            }
        }
    }
}
