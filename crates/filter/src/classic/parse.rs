//! Classic programs as text: `COUNT,CODE JT JF K,…`, as tcpdump -ddd and iptables -m bpf have it.

use super::{Instruction, MAX_RAW};
use crate::error::FilterError;

/// Much may stand where an instruction should.
fn beginning(text: &str) -> String {
    text.chars().take(60).collect()
}

fn error(reason: &'static str, text: &str) -> FilterError {
    FilterError::Text {
        reason,
        text: beginning(text),
    }
}

/// Reads the text form. Only its shape is checked here.
pub(super) fn parse(text: &str) -> Result<Vec<Instruction>, FilterError> {
    let mut lines = text
        .split([',', '\n'])
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let first = lines.next().ok_or_else(|| error("nothing there", text))?;
    let count: usize = first
        .parse()
        .map_err(|_| error("the number of instructions is missing", first))?;
    if count == 0 || count > MAX_RAW {
        return Err(FilterError::Length {
            len: count,
            max: MAX_RAW,
        });
    }
    let instructions = lines
        .enumerate()
        .map(|(index, line)| {
            instruction(line).map_err(|reason| FilterError::Instruction {
                index,
                text: beginning(line),
                reason: reason.to_owned(),
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    if instructions.len() != count {
        return Err(error(
            if instructions.len() < count {
                "fewer instructions than announced"
            } else {
                "more instructions than announced"
            },
            first,
        ));
    }
    Ok(instructions)
}

fn instruction(line: &str) -> Result<Instruction, &'static str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [code, jt, jf, k] = fields[..] else {
        return Err("an instruction has four numbers: CODE JT JF K");
    };
    Ok(Instruction {
        code: number(code)?,
        jt: number(jt)?,
        jf: number(jf)?,
        k: number(k)?,
    })
}

fn number<T: TryFrom<u32>>(text: &str) -> Result<T, &'static str> {
    let value = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| "one of its fields is no number of 32 bits")?;
    T::try_from(value).map_err(|_| "a number is too large for its field")
}

/// Writes the text form.
pub(super) fn print(instructions: &[Instruction]) -> String {
    let mut text = instructions.len().to_string();
    for i in instructions {
        text.push_str(&format!(",{} {} {} {}", i.code, i.jt, i.jf, i.k));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Classic;

    const IP: &str = "4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0";

    #[test]
    fn an_ill_formed_instruction_is_named() {
        for line in [
            "21 0 1",
            "21 0 1 2 3",
            "21 0 x 1",
            "21 0 300 1",
            "21 0 1 4294967296",
        ] {
            let program = format!("3,40 0 0 12,{line},6 0 0 0");
            let error = Classic::parse(&program).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("filter instruction 1 ({line}): ")),
                "{error}"
            );
        }
    }

    #[test]
    fn both_separators_and_a_trailing_comma_are_taken() {
        let commas = Classic::parse(IP).unwrap();
        assert_eq!(commas.to_ddd(), IP);
        let newlines = Classic::parse(&IP.replace(',', "\n")).unwrap();
        assert_eq!(commas, newlines);
        assert_eq!(Classic::parse(&format!("{IP},\n")).unwrap(), commas);
    }

    #[test]
    fn bad_shapes_name_the_piece() {
        for (text, piece) in [
            ("", ""),
            ("x,6 0 0 0", "x"),
            ("1,6 0 0", "6 0 0"),
            ("1,6 0 0 z", "6 0 0 z"),
            ("1,6 0 256 0", "6 0 256 0"),
            ("1,6 0 0 4294967296", "6 0 0 4294967296"),
            ("2,6 0 0 0", "2"),
            ("1,6 0 0 0,6 0 0 0", "1"),
            ("1,-6 0 0 0", "-6 0 0 0"),
        ] {
            match Classic::parse(text) {
                Err(FilterError::Text { text: found, .. }) => assert_eq!(found, piece),
                Err(FilterError::Instruction { text: found, .. }) => assert_eq!(found, piece),
                other => panic!("{text:?}: {other:?}"),
            }
        }
        assert!(matches!(
            Classic::parse("0"),
            Err(FilterError::Length { len: 0, .. })
        ));
        assert!(matches!(
            Classic::parse("999999999,6 0 0 0"),
            Err(FilterError::Length { .. })
        ));
    }
}
