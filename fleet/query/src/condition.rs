//! Conditions on rows of the index. The filter itself is applied to the packets afterwards; the conditions only exclude
//! rows that cannot match.

use std::collections::BTreeMap;
use std::slice;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::utils::{conjunction, split_binary};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, in_list};
use datafusion::prelude::{col, lit};
use trawl_filter::expression::fold::{Operand, Step, Values, fold};
use trawl_packet::net::ethertype;
use trawl_sys::{Error, Result};

use trawl_store::Scope;

#[derive(Debug, Default)]
pub struct Conditions(Vec<Expr>);

fn one_of(column: &str, values: &[String]) -> Option<Expr> {
    (!values.is_empty()).then(|| in_list(col(column), values.iter().map(lit).collect(), false))
}

impl Conditions {
    pub fn of(scope: &Scope, interfaces: &[String]) -> Self {
        let time = |ns: u64| lit(i64::try_from(ns).unwrap_or(i64::MAX));
        let mut all = Vec::new();
        all.extend(one_of("host", &scope.hosts));
        all.extend(one_of("interface", interfaces));
        all.extend(scope.from.map(|from| col("time_ns").gt_eq(time(from))));
        all.extend(scope.to.map(|to| col("time_ns").lt(time(to))));
        Self(all)
    }

    /// Adds the conditions that every packet of an expression meets, as far as the index has them.
    pub fn narrow(&mut self, expression: &str) {
        self.0.extend(RowConditions::of(expression).wide);
    }

    /// Adds conditions like [`Conditions::narrow`] for a question to the index alone; fails if it cannot answer.
    pub fn ask_index(&mut self, expression: &str) -> Result<()> {
        if expression.trim().is_empty() {
            return Ok(());
        }
        let exact = RowConditions::of(expression).exact.ok_or_else(|| {
            Error::usage(
                format!("cannot search the index for '{expression}'"),
                "the index has only host, src, dst, port and protocol, joined by 'and', 'or' and 'not'",
            )
        })?;
        self.0.push(exact);
        Ok(())
    }

    /// Adds the condition that packets belong to one of these captures.
    pub fn captures(&mut self, names: &[String]) {
        self.0.extend(one_of("capture", names));
    }

    /// Returns one condition for all; `None` if any row meets them.
    pub fn joined(&self) -> Option<Expr> {
        conjunction(self.0.iter().cloned())
    }
}

/// Conditions on rows for an expression.
#[derive(Debug, Default)]
struct RowConditions {
    /// Condition that all its packets meet; absent if any packet may match.
    wide: Option<Expr>,
    /// Condition that exactly its packets meet; absent if only their bytes decide.
    exact: Option<Expr>,
}

/// Maximum number of operators of a condition: DataFusion needs stack for each. Members of lists do not count.
const MOST_OPERATORS: usize = 500;

impl RowConditions {
    fn of(expression: &str) -> Self {
        let Self { wide, exact } = fold(expression, Self::join).unwrap_or_default();
        Self { wide: wide.filter(is_short), exact: exact.filter(is_short) }
    }

    fn join(step: Step<Self>) -> Self {
        // A condition that is already too long is not joined with others.
        let split = |parts: Vec<Self>| -> (Vec<Option<Expr>>, Vec<Option<Expr>>) {
            let short = |part: Self| (part.wide.filter(is_short), part.exact.filter(is_short));
            parts.into_iter().map(short).unzip()
        };
        match step {
            Step::Operand(operand) => operand.and_then(Self::operand).unwrap_or_default(),
            Step::Not(inner) => Self { wide: None, exact: inner.exact.filter(is_short).map(Expr::is_not_true) },
            Step::All(parts) => {
                let (wide, exact) = split(parts);
                let wide: Vec<Expr> = wide.into_iter().flatten().collect();
                let exact: Option<Vec<Expr>> = exact.into_iter().collect();
                Self { wide: balanced(&wide, Expr::and), exact: exact.and_then(|all| balanced(&all, Expr::and)) }
            }
            Step::Any(parts) => {
                let (wide, exact) = split(parts);
                let wide: Option<Vec<Expr>> = wide.into_iter().collect();
                let exact: Option<Vec<Expr>> = exact.into_iter().collect();
                Self { wide: wide.and_then(|parts| any(&parts)), exact: exact.and_then(|parts| any(&parts)) }
            }
        }
    }

    fn operand(Operand { qualifiers, values }: Operand) -> Option<Self> {
        let words: Vec<&str> = qualifiers.split_whitespace().collect();
        let (header, sides) = match &words[..] {
            [word, sides @ ..] if protocol(word).is_some() => (Some(col("protocol").eq(lit(protocol(word)?))), sides),
            // ARP has addresses and no protocol.
            ["ip" | "ip6", sides @ ..] if values != Values::Word => (Some(col("protocol").is_not_null()), sides),
            ["arp", sides @ ..] => (Some(col("ethertype").eq(lit(i32::from(ethertype::ARP)))), sides),
            sides => (None, sides),
        };
        let either = |columns: [&str; 2], condition: &dyn Fn(Expr) -> Expr| match sides {
            [] => Some(condition(col(columns[0])).or(condition(col(columns[1])))),
            ["src"] => Some(condition(col(columns[0]))),
            ["dst"] => Some(condition(col(columns[1]))),
            _ => None,
        };
        let value = match &values {
            Values::Word if sides.is_empty() => None,
            Values::Addresses(range) if range.start() == range.end() => {
                let address = range.start().to_string();
                Some(either(["src", "dst"], &|column| column.eq(lit(&address)))?)
            }
            Values::Ports(range) => {
                let (from, to) = (lit(i32::from(*range.start())), lit(i32::from(*range.end())));
                Some(either(["sport", "dport"], &|column| {
                    if from == to { column.eq(from.clone()) } else { column.between(from.clone(), to.clone()) }
                })?)
            }
            Values::Word | Values::Addresses(_) => return None,
        };
        let exact = conjunction(header.into_iter().chain(value))?;
        let mut wide = vec![exact.clone()];
        if matches!(values, Values::Ports(_)) {
            // Fragments and truncated packets have no ports in the index.
            let with_ports = [6, 17, 132].map(lit).to_vec();
            wide.push(col("sport").is_null().and(in_list(col("protocol"), with_ports, false)));
        }
        // The index has no headers for some packets: on an unknown link, broken ones, RARP, and all of older indexes.
        wide.push(col("ethertype").is_null());
        Some(Self { wide: any(&wide), exact: Some(exact) })
    }
}

fn protocol(word: &str) -> Option<i32> {
    Some(match word {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmp6" => 58,
        "sctp" => 132,
        _ => return None,
    })
}

/// Joins conditions as a tree of low depth.
fn balanced(parts: &[Expr], join: fn(Expr, Expr) -> Expr) -> Option<Expr> {
    match parts {
        [] => None,
        [one] => Some(one.clone()),
        _ => {
            let (left, right) = parts.split_at(parts.len() / 2);
            Some(join(balanced(left, join)?, balanced(right, join)?))
        }
    }
}

/// Joins conditions by `or`. Values of one column become a list and equal conditions become one, so that a condition
/// for a thousand hosts is short.
fn any(parts: &[Expr]) -> Option<Expr> {
    let mut values: BTreeMap<&str, Vec<Expr>> = BTreeMap::new();
    let mut others: Vec<Expr> = Vec::new();
    for part in parts.iter().flat_map(|part| split_binary(part, Operator::Or)) {
        match equal_to(part) {
            Some((column, found)) => values.entry(column).or_default().extend_from_slice(found),
            None if others.contains(part) => {}
            None => others.push(part.clone()),
        }
    }
    let lists = values.into_iter().map(|(column, values)| match &values[..] {
        [one] => col(column).eq(one.clone()),
        _ => in_list(col(column), values, false),
    });
    let parts: Vec<Expr> = lists.chain(others).collect();
    balanced(&parts, Expr::or)
}

/// Returns the column and the values of a condition that requires the column to equal one of the values.
fn equal_to(condition: &Expr) -> Option<(&str, &[Expr])> {
    let (column, values) = match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => (left, slice::from_ref(&**right)),
        Expr::InList(list) if !list.negated => (&list.expr, &list.list[..]),
        _ => return None,
    };
    match &**column {
        Expr::Column(column) => Some((&column.name, values)),
        _ => None,
    }
}

fn is_short(condition: &Expr) -> bool {
    let mut operators = 0;
    let counted = condition.apply(|part| {
        operators += usize::from(matches!(part, Expr::BinaryExpr(_) | Expr::IsNotTrue(_)));
        Ok(if operators > MOST_OPERATORS { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    counted.is_ok_and(|_| operators <= MOST_OPERATORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(conditions: &Conditions) -> String {
        conditions.joined().map_or(String::new(), |condition| condition.human_display().to_string())
    }

    fn narrowed(expression: &str) -> String {
        let mut conditions = Conditions::default();
        conditions.narrow(expression);
        shown(&conditions)
    }

    const UNREAD: &str = "ethertype IS NULL";
    const WEB: &str = "dport = 80 OR sport = 80 OR sport IS NULL AND protocol IN 6, 17, 132 OR ethertype IS NULL";

    #[test]
    fn operands_the_index_knows_become_conditions() {
        assert_eq!(narrowed("src host 2001:DB8::0:1"), format!("src = 2001:db8::1 OR {UNREAD}"));
        assert_eq!(narrowed("udp"), format!("protocol = 17 OR {UNREAD}"));
        // The packets' bytes decide about the rest.
        for expression in [
            "greater 100 and port 80",
            "port 80 && not host 10.0.0.1",
            "( port 80 ) and tcp[tcpflags] = 2",
            "ip[2:2] != 40 and (port 80 and ether host 2:0:0:0:0:1)",
        ] {
            assert_eq!(narrowed(expression), WEB, "{expression}");
        }
        let with_arp = narrowed("port 80 or arp");
        for part in ["dport = 80", "sport = 80", "ethertype = 2054", UNREAD] {
            assert!(with_arp.contains(part), "{with_arp}");
        }
        assert_eq!(narrowed("host 10.0.0.1 or 10.0.0.2"), {
            let list = "IN 10.0.0.1, 10.0.0.2";
            format!("dst {list} OR src {list} OR {UNREAD}")
        });
        let either = col("sport").eq(lit(80)).or(col("dport").eq(lit(80)));
        let exact = RowConditions::of("tcp src or dst port 80").exact;
        assert_eq!(exact, Some(col("protocol").eq(lit(6)).and(either)));
    }

    #[test]
    fn expressions_on_inner_headers_narrow_nothing() {
        for expression in [
            "host 10.0.0.1 or net 10.0.0.0/8",
            "not port 80",
            "! port 80",
            "vlan and host 10.0.0.1",
            "not src and dst host 10.0.0.1",
            "wlan host 10.0.0.1",
            "port 80 and (tcp[tcpflags] & (tcp-syn|tcp-ack) != 0)",
            "(port 80",
            "host example.org",
            "src",
            "",
        ] {
            assert_eq!(narrowed(expression), "", "{expression}");
        }
    }

    #[test]
    fn only_exact_conditions_are_asked() {
        let asked = |expression: &str| {
            let mut conditions = Conditions::default();
            conditions.ask_index(expression).ok().map(|()| shown(&conditions))
        };
        assert_eq!(
            asked("ip src 10.0.0.1 and not (udp or dst port 1)").as_deref(),
            Some("protocol IS NOT NULL AND src = 10.0.0.1 AND dport = 1 OR protocol = 17 IS NOT TRUE")
        );
        let negated = RowConditions::of("not (udp or dst port 1)").exact;
        assert!(
            matches!(&negated, Some(Expr::IsNotTrue(inner)) if matches!(**inner, Expr::BinaryExpr(_))),
            "{negated:?}"
        );
        assert_eq!(asked("").as_deref(), Some(""));
        assert_eq!(asked("udp or greater 100"), None);
    }

    /// DataFusion overflows the stack with a condition of thousands of operators.
    #[test]
    fn long_conditions_are_lists_or_none() {
        let hosts = |word: &str, not: &str| {
            let hosts = (0..2000).map(|host| format!("{not}host 10.0.{}.{}", host / 250, host % 250));
            hosts.collect::<Vec<_>>().join(word)
        };
        let listed = RowConditions::of(&hosts(" or ", ""));
        let operators = |condition: &Option<Expr>| {
            let text = condition.as_ref().map(|condition| condition.human_display().to_string()).unwrap_or_default();
            (text.contains("10.0.7.249"), text.matches(" OR ").count())
        };
        assert_eq!((operators(&listed.wide), operators(&listed.exact)), ((true, 2), (true, 1)));
        assert!(RowConditions::of(&hosts(" and ", "not ")).exact.is_none());
    }
}
