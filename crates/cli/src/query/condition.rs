//! What a row of the index has to be like, in SQL. A filter's own words are judged on the packets afterwards; here they only
//! keep out rows that cannot match.

use std::net::IpAddr;

use trawl_kernel::clock;
use trawl_store::{Scope, key};

const DAY_NS: u64 = 86_400_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Conditions(Vec<String>);

/// Text as SQL writes it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn one_of(column: &str, values: &[String]) -> Option<String> {
    let list: Vec<String> = values.iter().map(|value| quoted(value)).collect();
    (!list.is_empty()).then(|| format!("{column} IN ({})", list.join(", ")))
}

fn time(ns: u64) -> String {
    format!("arrow_cast({ns}, 'Timestamp(Nanosecond, Some(\"UTC\"))')")
}

impl Conditions {
    pub fn of(scope: &Scope, interfaces: &[String]) -> Self {
        let hosts: Vec<String> = scope.hosts.iter().map(|host| key::escaped(host)).collect();
        let mut all = Vec::new();
        all.extend(one_of("host", &hosts));
        all.extend(one_of("interface", interfaces));
        // The date is that of a chunk's first packet, so that of a packet's own day or of the day before.
        if let Some(from) = scope.from {
            let date = clock::date_of(from.saturating_sub(DAY_NS));
            all.push(format!("date >= '{date}' AND time >= {}", time(from)));
        }
        if let Some(to) = scope.to {
            let date = clock::date_of(to);
            all.push(format!("date <= '{date}' AND time < {}", time(to)));
        }
        Self(all)
    }

    /// Adds what every packet that an expression takes has to be like. An expression with anything but primitives joined by
    /// `and` adds nothing.
    pub fn narrow(&mut self, expression: &str) {
        if let Some(primitives) = primitives(expression) {
            self.0
                .extend(primitives.into_iter().filter_map(|(sql, _)| sql));
        }
    }

    /// As [`Conditions::narrow`] for a question that the index alone answers; false if it cannot.
    pub fn ask(&mut self, expression: &str) -> bool {
        let Some(primitives) = primitives(expression) else {
            return false;
        };
        for (_, exact) in primitives {
            match exact {
                Some(exact) => self.0.push(exact),
                None => return false,
            }
        }
        true
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

/// A primitive in two forms: what its packets cannot be without, and what exactly its packets are like.
type Primitive = (Option<String>, Option<String>);

fn primitives(expression: &str) -> Option<Vec<Primitive>> {
    // After these a packet's other headers are meant than those in the index, or not all conditions hold at once.
    let others = [
        "or", "not", "vlan", "mpls", "pppoes", "pppoed", "geneve", "vxlan",
    ];
    let plain = |c: char| c.is_ascii_alphanumeric() || " .:-_/\t\n".contains(c);
    let words: Vec<&str> = expression.split_whitespace().collect();
    if !expression.chars().all(plain) || words.iter().any(|word| others.contains(word)) {
        return None;
    }
    if words.is_empty() {
        return Some(Vec::new());
    }
    Some(words.split(|word| *word == "and").map(primitive).collect())
}

fn primitive(words: &[&str]) -> Primitive {
    let known = read(words);
    let wide = known.as_ref().map(|(sql, may_be_absent)| {
        // Rows without IP, and fragments without ports, are judged by their bytes.
        format!("{sql} OR {may_be_absent} IS NULL")
    });
    (wide, known.map(|(sql, _)| sql))
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

/// The condition, and a column without which the row says nothing about it.
fn read(words: &[&str]) -> Option<(String, &'static str)> {
    let number = |text: &str| text.parse::<u16>().ok();
    let address = |text: &str| {
        text.parse::<IpAddr>()
            .ok()
            .map(|ip| quoted(&ip.to_string()))
    };
    let (transport, rest) = match words {
        [word, rest @ ..] if protocol(word).is_some() => (protocol(word), rest),
        [_, "host", ..] | [_, "src" | "dst", ..] if matches!(words[0], "ip" | "ip6") => {
            (None, &words[1..])
        }
        _ => (None, words),
    };
    let also = transport.map_or(String::new(), |number| format!("protocol = {number} AND "));
    Some(match rest {
        [] => (format!("protocol = {}", transport?), "protocol"),
        ["port", text] => {
            let port = number(text)?;
            (format!("{also}(sport = {port} OR dport = {port})"), "sport")
        }
        ["src", "port", text] => (format!("{also}sport = {}", number(text)?), "sport"),
        ["dst", "port", text] => (format!("{also}dport = {}", number(text)?), "sport"),
        ["host", text] => {
            let ip = address(text)?;
            (format!("{also}(src = {ip} OR dst = {ip})"), "src")
        }
        ["src", text] | ["src", "host", text] => (format!("{also}src = {}", address(text)?), "src"),
        ["dst", text] | ["dst", "host", text] => (format!("{also}dst = {}", address(text)?), "src"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrowed(expression: &str) -> String {
        let mut conditions = Conditions::default();
        conditions.narrow(expression);
        conditions.to_sql()
    }

    #[test]
    fn what_the_index_knows_is_asked_of_it() {
        assert_eq!(
            narrowed("tcp dst port 80 and src host 10.0.0.1"),
            " WHERE (protocol = 6 AND dport = 80 OR sport IS NULL) AND (src = '10.0.0.1' OR src IS NULL)"
        );
        assert_eq!(
            narrowed("ip6 host 2001:DB8::0:1"),
            " WHERE ((src = '2001:db8::1' OR dst = '2001:db8::1') OR src IS NULL)"
        );
        assert_eq!(
            narrowed("udp"),
            " WHERE (protocol = 17 OR protocol IS NULL)"
        );
        // The rest is judged by the bytes.
        assert_eq!(
            narrowed("greater 100 and udp port 53"),
            " WHERE (protocol = 17 AND (sport = 53 OR dport = 53) OR sport IS NULL)"
        );
    }

    #[test]
    fn what_may_mean_other_headers_narrows_nothing() {
        for expression in [
            "host 10.0.0.1 or host 10.0.0.2",
            "not port 80",
            "! port 80",
            "vlan and host 10.0.0.1",
            "host 10.0.0.1 and (port 80)",
            "port 80 || port 81",
            "host 10.0.0.1 and tcp[13] = 2",
            "host example.org",
            "",
        ] {
            assert_eq!(narrowed(expression), "", "{expression}");
        }
    }

    #[test]
    fn text_cannot_end_its_quotation() {
        let scope = Scope {
            hosts: vec!["a' OR '1'='1".to_owned()],
            ..Scope::default()
        };
        assert_eq!(
            Conditions::of(&scope, &["e'th".to_owned()]).to_sql(),
            " WHERE (host IN ('a=27=20OR=20=271=27=3d=271')) AND (interface IN ('e''th'))"
        );
    }
}
