//! Conditions on rows of the index. The filter itself is applied to the packets afterwards; the conditions only exclude
//! rows that cannot match.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trawl_filter::expression::fold::{Operand, Step, Values, fold};
use trawl_packet::net::ethertype;
use trawl_packet::net::prefix::Prefix;
use trawl_sys::{Error, Result};

use crate::runs::coverage::Scope;

/// Name of a column.
type Column = Cow<'static, str>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Number(i64),
    Text(String),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A condition on a row. A row without a value in a column does not meet conditions on the value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Condition {
    /// The column has one of these values.
    OneOf(Column, Vec<Value>),
    /// The column has an address in this network.
    Net(Column, #[serde(with = "as_text")] Prefix),
    /// The column has a number between these, or one of them.
    Within(Column, i64, i64),
    Null(Column),
    NotNull(Column),
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
}

/// Prefixes as texts.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use trawl_packet::net::prefix::Prefix;

    pub fn serialize<S: Serializer>(prefix: &Prefix, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(prefix)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Prefix, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

fn equal(column: &'static str, value: impl Into<Value>) -> Condition {
    Condition::OneOf(column.into(), vec![value.into()])
}

/// Conditions that all rows of an answer meet.
#[derive(Clone, Debug, Default)]
pub struct Conditions(Vec<Condition>);

fn one_of(column: &'static str, values: &[String]) -> Option<Condition> {
    let value = |text: &String| Value::Text(text.clone());
    (!values.is_empty()).then(|| Condition::OneOf(column.into(), values.iter().map(value).collect()))
}

impl Conditions {
    pub fn of(scope: &Scope, interfaces: &[String]) -> Self {
        let time = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let mut all = Vec::new();
        all.extend(one_of("host", &scope.hosts));
        all.extend(one_of("interface", interfaces));
        if scope.from.is_some() || scope.to.is_some() {
            let (from, to) = (scope.from.map_or(i64::MIN, time), scope.to.map_or(i64::MAX, |to| time(to) - 1));
            all.push(Condition::Within("time_ns".into(), from, to));
        }
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
                "the index has only host, net 192.0.2.0/24, src, dst, port and protocol, joined by 'and', 'or' and 'not'",
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
    pub fn joined(&self) -> Option<Condition> {
        all(self.0.iter().cloned())
    }
}

/// Conditions on rows for an expression.
#[derive(Debug, Default)]
struct RowConditions {
    /// Condition that all its packets meet; absent if any packet may match.
    wide: Option<Condition>,
    /// Condition that exactly its packets meet; absent if only their bytes decide.
    exact: Option<Condition>,
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
        let split = |parts: Vec<Self>| -> (Vec<Option<Condition>>, Vec<Option<Condition>>) {
            let short = |part: Self| (part.wide.filter(is_short), part.exact.filter(is_short));
            parts.into_iter().map(short).unzip()
        };
        match step {
            Step::Operand(operand) => operand.and_then(Self::operand).unwrap_or_default(),
            Step::Not(inner) => {
                let negated = |inner| Condition::Not(Box::new(inner));
                Self { wide: None, exact: inner.exact.filter(is_short).map(negated) }
            }
            Step::All(parts) => {
                let (wide, exact) = split(parts);
                let exact: Option<Vec<Condition>> = exact.into_iter().collect();
                Self { wide: all(wide.into_iter().flatten()), exact: exact.and_then(all) }
            }
            Step::Any(parts) => {
                let (wide, exact) = split(parts);
                let wide: Option<Vec<Condition>> = wide.into_iter().collect();
                let exact: Option<Vec<Condition>> = exact.into_iter().collect();
                Self { wide: wide.and_then(any), exact: exact.and_then(any) }
            }
        }
    }

    fn operand(Operand { qualifiers, values }: Operand) -> Option<Self> {
        let words: Vec<&str> = qualifiers.split_whitespace().collect();
        let (header, sides) = match &words[..] {
            [word, sides @ ..] if protocol(word).is_some() => (Some(equal("protocol", protocol(word)?)), sides),
            // ARP has addresses and no protocol.
            ["ip" | "ip6", sides @ ..] if values != Values::Word => {
                (Some(Condition::NotNull("protocol".into())), sides)
            }
            ["arp", sides @ ..] => (Some(equal("ethertype", i64::from(ethertype::ARP))), sides),
            sides => (None, sides),
        };
        let either = |columns: [&'static str; 2], condition: &dyn Fn(&'static str) -> Condition| match sides {
            [] => any(columns.map(condition)),
            ["src"] => Some(condition(columns[0])),
            ["dst"] => Some(condition(columns[1])),
            _ => None,
        };
        let value = match &values {
            Values::Word if sides.is_empty() => None,
            Values::Addresses(range) if range.start() == range.end() => {
                let address = range.start().to_string();
                Some(either(["src", "dst"], &|column| equal(column, &address[..]))?)
            }
            Values::Addresses(range) => {
                let net = Prefix::between(*range.start(), *range.end())?;
                Some(either(["src", "dst"], &|column| Condition::Net(column.into(), net))?)
            }
            Values::Ports(range) => {
                let (from, to) = (i64::from(*range.start()), i64::from(*range.end()));
                Some(either(["sport", "dport"], &|column| {
                    if from == to { equal(column, from) } else { Condition::Within(column.into(), from, to) }
                })?)
            }
            Values::Word => return None,
        };
        let exact = all(header.into_iter().chain(value))?;
        let mut wide = vec![exact.clone()];
        if matches!(values, Values::Ports(_)) {
            // Fragments and truncated packets have no ports in the index.
            let with_ports = [6, 17, 132].map(Value::Number).to_vec();
            let with_ports = Condition::OneOf("protocol".into(), with_ports);
            wide.push(Condition::All(vec![Condition::Null("sport".into()), with_ports]));
        }
        // The index has no headers for some packets: on an unknown link, broken ones, RARP, and all of older indexes.
        wide.push(Condition::Null("ethertype".into()));
        Some(Self { wide: any(wide), exact: Some(exact) })
    }
}

fn protocol(word: &str) -> Option<i64> {
    Some(match word {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmp6" => 58,
        "sctp" => 132,
        _ => return None,
    })
}

/// Returns the only condition, or what `join` makes of several.
fn joined(mut parts: Vec<Condition>, join: fn(Vec<Condition>) -> Condition) -> Option<Condition> {
    match parts.len() {
        0 | 1 => parts.pop(),
        _ => Some(join(parts)),
    }
}

/// Joins conditions by `and`; returns `None` for none.
fn all(parts: impl IntoIterator<Item = Condition>) -> Option<Condition> {
    let mut all = Vec::new();
    for part in parts {
        match part {
            Condition::All(parts) => all.extend(parts),
            part => all.push(part),
        }
    }
    joined(all, Condition::All)
}

/// Joins conditions by `or`. Values of one column become a list and equal conditions become one, so that a condition
/// for a thousand hosts is short.
fn any(parts: impl IntoIterator<Item = Condition>) -> Option<Condition> {
    let mut values: BTreeMap<Column, Vec<Value>> = BTreeMap::new();
    let mut others: Vec<Condition> = Vec::new();
    let mut add = |part| match part {
        Condition::OneOf(column, found) => values.entry(column).or_default().extend(found),
        part if others.contains(&part) => {}
        part => others.push(part),
    };
    for part in parts {
        match part {
            Condition::Any(parts) => parts.into_iter().for_each(&mut add),
            part => add(part),
        }
    }
    let lists = values.into_iter().map(|(column, values)| Condition::OneOf(column, values));
    joined(lists.chain(others).collect(), Condition::Any)
}

/// Returns the number of `and`, `or` and `not` in a condition.
fn operators(condition: &Condition) -> usize {
    match condition {
        Condition::All(parts) | Condition::Any(parts) => {
            parts.iter().map(operators).sum::<usize>() + parts.len().saturating_sub(1)
        }
        Condition::Not(inner) => 1 + operators(inner),
        _ => 0,
    }
}

fn is_short(condition: &Condition) -> bool {
    operators(condition) <= MOST_OPERATORS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(condition: &Condition) -> String {
        let list = |parts: &[Condition], word: &str| parts.iter().map(shown).collect::<Vec<_>>().join(word);
        let value = |value: &Value| match value {
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text.clone(),
        };
        match condition {
            Condition::OneOf(column, values) => match &values[..] {
                [one] => format!("{column} = {}", value(one)),
                _ => format!("{column} IN {}", values.iter().map(value).collect::<Vec<_>>().join(", ")),
            },
            Condition::Net(column, prefix) => format!("{column} IN {prefix}"),
            Condition::Within(column, from, to) => format!("{column} BETWEEN {from} AND {to}"),
            Condition::Null(column) => format!("{column} IS NULL"),
            Condition::NotNull(column) => format!("{column} IS NOT NULL"),
            Condition::All(parts) => list(parts, " AND "),
            Condition::Any(parts) => list(parts, " OR "),
            Condition::Not(inner) => format!("{} IS NOT TRUE", shown(inner)),
        }
    }

    fn joined(conditions: &Conditions) -> String {
        conditions.joined().as_ref().map(shown).unwrap_or_default()
    }

    fn narrowed(expression: &str) -> String {
        let mut conditions = Conditions::default();
        conditions.narrow(expression);
        joined(&conditions)
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
        assert_eq!(narrowed("dst net 10.0.0.0/8"), format!("dst IN 10.0.0.0/8 OR {UNREAD}"));
        assert_eq!(
            narrowed("ip6 net 2001:db8::/32 or arp"),
            format!(
                "ethertype = 2054 OR protocol IS NOT NULL AND src IN 2001:db8::/32 OR dst IN 2001:db8::/32 OR {UNREAD}"
            )
        );
        let exact = RowConditions::of("tcp src or dst port 80").exact;
        let either = Condition::Any(vec![equal("dport", 80), equal("sport", 80)]);
        assert_eq!(exact, Some(Condition::All(vec![equal("protocol", 6), either])));
    }

    #[test]
    fn expressions_on_inner_headers_narrow_nothing() {
        for expression in [
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
            conditions.ask_index(expression).ok().map(|()| joined(&conditions))
        };
        assert_eq!(
            asked("ip src 10.0.0.1 and not (udp or dst port 1)").as_deref(),
            Some("protocol IS NOT NULL AND src = 10.0.0.1 AND dport = 1 OR protocol = 17 IS NOT TRUE")
        );
        let negated = RowConditions::of("not (udp or dst port 1)").exact;
        assert!(matches!(&negated, Some(Condition::Not(inner)) if matches!(**inner, Condition::Any(_))), "{negated:?}");
        assert_eq!(asked("").as_deref(), Some(""));
        assert_eq!(asked("not src net 10.0.0.0/8").as_deref(), Some("src IN 10.0.0.0/8 IS NOT TRUE"));
        assert_eq!(asked("udp or greater 100"), None);
        // libpcap refuses a network with bits after its length.
        assert_eq!(asked("net 10.0.0.1/8"), None);
    }

    /// DataFusion overflows the stack with a condition of thousands of operators.
    #[test]
    fn long_conditions_are_lists_or_none() {
        let hosts = |word: &str, not: &str| {
            let hosts = (0..2000).map(|host| format!("{not}host 10.0.{}.{}", host / 250, host % 250));
            hosts.collect::<Vec<_>>().join(word)
        };
        let listed = RowConditions::of(&hosts(" or ", ""));
        let operators = |condition: &Option<Condition>| {
            let text = condition.as_ref().map(shown).unwrap_or_default();
            (text.contains("10.0.7.249"), text.matches(" OR ").count())
        };
        assert_eq!((operators(&listed.wide), operators(&listed.exact)), ((true, 2), (true, 1)));
        assert!(RowConditions::of(&hosts(" and ", "not ")).exact.is_none());
    }
}
