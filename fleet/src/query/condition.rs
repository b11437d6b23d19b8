//! SQL conditions for rows of the index. The filter itself is applied to the packets afterwards; the conditions only
//! exclude rows that cannot match.

use std::net::IpAddr;

use trawl_sys::{Error, Result};

use crate::store::Scope;

#[derive(Debug, Default)]
pub struct Conditions(Vec<String>);

/// Quotes text for SQL.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn one_of(column: &str, values: &[String]) -> Option<String> {
    let list: Vec<String> = values.iter().map(|value| quoted(value)).collect();
    (!list.is_empty()).then(|| format!("{column} IN ({})", list.join(", ")))
}

impl Conditions {
    pub fn of(scope: &Scope, interfaces: &[String]) -> Self {
        let mut all = Vec::new();
        all.extend(one_of("host", &scope.hosts));
        all.extend(one_of("interface", interfaces));
        all.extend(scope.from.map(|from| format!("time_ns >= {from}")));
        all.extend(scope.to.map(|to| format!("time_ns < {to}")));
        Self(all)
    }

    /// Adds the conditions that every packet of an expression meets, as far as the index has them.
    pub fn narrow(&mut self, expression: &str) {
        if let Some(parsed) = parse(expression) {
            self.0.extend(parsed.wide);
        }
    }

    /// Adds conditions like [`Conditions::narrow`] for a question to the index alone; fails if it cannot answer.
    pub fn ask_index(&mut self, expression: &str) -> Result<()> {
        if expression.trim().is_empty() {
            return Ok(());
        }
        let exact = parse(expression).and_then(|parsed| parsed.exact);
        let exact = exact.ok_or_else(|| {
            Error::usage(
                format!("cannot look for '{expression}'"),
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

    pub fn and(&mut self, condition: String) {
        self.0.push(condition);
    }

    pub fn to_sql(&self) -> String {
        let all: Vec<String> = self.0.iter().map(|one| format!("({one})")).collect();
        match all.is_empty() {
            true => String::new(),
            false => format!(" WHERE {}", all.join(" AND ")),
        }
    }
}

/// SQL conditions for an expression.
#[derive(Debug, Default)]
struct SqlConditions {
    /// Condition that all its packets meet; absent if any packet may match.
    wide: Option<String>,
    /// Condition that exactly its packets meet; absent if only their bytes decide.
    exact: Option<String>,
}

/// Keywords after which an expression is about other headers than the index's.
const OTHER_HEADERS: [&str; 6] = ["vlan", "mpls", "pppoes", "pppoed", "geneve", "vxlan"];

/// Parses an expression as tcpdump does: `and` and `or` have equal precedence, from left to right. Returns `None` for
/// unknown syntax.
fn parse(expression: &str) -> Option<SqlConditions> {
    let mut spaced = expression.to_owned();
    for (sign, word) in [("&&", " and "), ("||", " or "), ("(", " ( "), (")", " ) ")] {
        spaced = spaced.replace(sign, word);
    }
    // `!=` is a comparison.
    let spaced = spaced.replace('!', " not ").replace(" not =", "!=");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    if words.iter().any(|word| OTHER_HEADERS.contains(word)) {
        return None;
    }
    let mut left = words.as_slice();
    let parsed = all(&mut left)?;
    left.is_empty().then_some(parsed)
}

/// Parses terms joined by `and` and `or`, to the end or a closing parenthesis.
fn all(left: &mut &[&str]) -> Option<SqlConditions> {
    let mut parsed = term(left)?;
    while let [joint @ ("and" | "or"), rest @ ..] = *left {
        *left = rest;
        let next = term(left)?;
        parsed = match *joint {
            "and" => SqlConditions {
                wide: match (parsed.wide, next.wide) {
                    (Some(one), Some(other)) => Some(format!("({one}) AND ({other})")),
                    (one, other) => one.or(other),
                },
                exact: joined(parsed.exact, "AND", next.exact),
            },
            _ => SqlConditions {
                wide: joined(parsed.wide, "OR", next.wide),
                exact: joined(parsed.exact, "OR", next.exact),
            },
        };
    }
    Some(parsed)
}

fn joined(one: Option<String>, by: &str, other: Option<String>) -> Option<String> {
    Some(format!("({}) {by} ({})", one?, other?))
}

fn term(left: &mut &[&str]) -> Option<SqlConditions> {
    match *left {
        ["not", rest @ ..] => {
            *left = rest;
            let exact = term(left)?.exact;
            Some(SqlConditions { wide: None, exact: exact.map(|sql| format!("({sql}) IS NOT TRUE")) })
        }
        ["(", rest @ ..] => {
            *left = rest;
            let parsed = all(left)?;
            let [")", rest @ ..] = *left else {
                return None;
            };
            *left = rest;
            Some(parsed)
        }
        words => {
            let is_end = |word: &&str| ["and", "or", "not", "(", ")"].contains(word);
            let count = words.iter().position(is_end).unwrap_or(words.len());
            let (words, rest) = words.split_at(count);
            *left = rest;
            match words {
                // `src or dst port 80` is one primitive.
                [] | ["src" | "dst"] | [_, "src" | "dst"] => None,
                _ => Some(primitive(words)),
            }
        }
    }
}

/// Packets whose headers the index could not read: of an unknown link, broken ones, RARP, and all of older indexes.
const UNREAD: &str = "ethertype IS NULL";

fn primitive(words: &[&str]) -> SqlConditions {
    let Some((sql, has_ports)) = read(words) else {
        return SqlConditions::default();
    };
    // Fragments and truncated packets have no ports in the index.
    let portless = "sport IS NULL AND protocol IN (6, 17, 132)";
    let wide = match has_ports {
        true => format!("{sql} OR {portless} OR {UNREAD}"),
        false => format!("{sql} OR {UNREAD}"),
    };
    SqlConditions { wide: Some(wide), exact: Some(sql) }
}

fn protocol(word: &str) -> Option<u8> {
    Some(match word {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmp6" => 58,
        "sctp" => 132,
        _ => return None,
    })
}

/// Returns the condition, and true if it is about ports.
fn read(words: &[&str]) -> Option<(String, bool)> {
    let number = |text: &str| text.parse::<u16>().ok();
    let address = |text: &str| text.parse::<IpAddr>().ok().map(|ip| quoted(&ip.to_string()));
    let (also, rest) = match words {
        [word, rest @ ..] if protocol(word).is_some() => (format!("protocol = {}", protocol(word)?), rest),
        // ARP has addresses and no protocol.
        ["ip" | "ip6", rest @ ..] if !rest.is_empty() => ("protocol IS NOT NULL".to_owned(), rest),
        ["arp", rest @ ..] => ("ethertype = 2054".to_owned(), rest),
        _ => (String::new(), words),
    };
    let (sql, has_ports) = match rest {
        [] => (String::new(), false),
        ["port", text] => {
            let port = number(text)?;
            (format!("(sport = {port} OR dport = {port})"), true)
        }
        ["src", "port", text] => (format!("sport = {}", number(text)?), true),
        ["dst", "port", text] => (format!("dport = {}", number(text)?), true),
        ["host", text] => {
            let ip = address(text)?;
            (format!("(src = {ip} OR dst = {ip})"), false)
        }
        ["src", text] | ["src", "host", text] => (format!("src = {}", address(text)?), false),
        ["dst", text] | ["dst", "host", text] => (format!("dst = {}", address(text)?), false),
        _ => return None,
    };
    let both: Vec<String> = [also, sql].into_iter().filter(|one| !one.is_empty()).collect();
    (!both.is_empty()).then(|| (both.join(" AND "), has_ports))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrowed(expression: &str) -> String {
        let mut conditions = Conditions::default();
        conditions.narrow(expression);
        conditions.to_sql()
    }

    const WEB: &str = "(sport = 80 OR dport = 80) OR sport IS NULL AND protocol IN (6, 17, 132) OR ethertype IS NULL";

    #[test]
    fn conditions_the_index_knows_become_sql() {
        assert_eq!(narrowed("src host 2001:DB8::0:1"), format!(" WHERE (src = '2001:db8::1' OR {UNREAD})"));
        assert_eq!(narrowed("udp"), format!(" WHERE (protocol = 17 OR {UNREAD})"));
        // The packets' bytes decide about the rest.
        for expression in [
            "greater 100 and port 80",
            "port 80 && not host 10.0.0.1",
            "( port 80 ) and tcp[tcpflags] = 2",
            "ip[2:2] != 40 and (port 80 and ether host 2:0:0:0:0:1)",
        ] {
            assert_eq!(narrowed(expression), format!(" WHERE ({WEB})"), "{expression}");
        }
        assert_eq!(narrowed("port 80 or arp"), format!(" WHERE (({WEB}) OR (ethertype = 2054 OR {UNREAD}))"));
    }

    #[test]
    fn expressions_on_inner_headers_narrow_nothing() {
        for expression in [
            "host 10.0.0.1 or net 10.0.0.0/8",
            "not port 80",
            "! port 80",
            "vlan and host 10.0.0.1",
            "port 80 or 81",
            "not src and dst host 10.0.0.1",
            "tcp src or dst port 80",
            "port 80 and (tcp[tcpflags] & (tcp-syn|tcp-ack) != 0)",
            "(port 80",
            "host example.org",
            "",
        ] {
            assert_eq!(narrowed(expression), "", "{expression}");
        }
    }

    #[test]
    fn only_exact_conditions_are_asked() {
        let asked = |expression: &str| {
            let mut conditions = Conditions::default();
            conditions.ask_index(expression).ok().map(|()| conditions.to_sql())
        };
        assert_eq!(
            asked("ip src 10.0.0.1 and not (udp or dst port 1)").as_deref(),
            Some(
                " WHERE ((protocol IS NOT NULL AND src = '10.0.0.1') AND \
                 (((protocol = 17) OR (dport = 1)) IS NOT TRUE))"
            )
        );
        assert_eq!(asked("").as_deref(), Some(""));
        assert_eq!(asked("udp or greater 100"), None);
    }

    #[test]
    fn text_cannot_end_its_quotation() {
        let scope = Scope { hosts: vec!["a' OR '1'='1".to_owned()], ..Scope::default() };
        assert_eq!(
            Conditions::of(&scope, &["e'th".to_owned()]).to_sql(),
            " WHERE (host IN ('a'' OR ''1''=''1')) AND (interface IN ('e''th'))"
        );
    }
}
