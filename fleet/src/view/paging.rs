//! Pages of a sorted table. A page begins after a row or ends before one: the engine then keeps the rows of the page only,
//! while an OFFSET makes it sort all rows before the page.

use serde::{Deserialize, Serialize};

use super::table::Rows;

/// A column by which rows are sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorted {
    pub column: String,
    pub descends: bool,
}

/// The place of a row in the order: its value in each sorted column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(Vec<Key>);

/// A value as text, `None` for null, and the engine's name of its type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key(Option<String>, String);

/// The part of the table that is on the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Part {
    #[default]
    First,
    After(Cursor),
    Before(Cursor),
    Last,
}

/// An order of rows. Together, the sorted columns differ in any two rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paging {
    pub order: Vec<Sorted>,
    pub part: Part,
}

impl Cursor {
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|_| "after and before need a cursor from an earlier answer".to_owned())
    }

    /// Returns the place of a row from the values of the columns that `Paging::sql` adds.
    fn of(keys: &[String]) -> Self {
        let key = |pair: &[String]| Key(pair[0].strip_prefix(MARK).map(str::to_owned), pair[1].clone());
        Self(keys.chunks_exact(KEYS).map(key).collect())
    }
}

/// Number of columns that describe a key: its value and its type.
const KEYS: usize = 2;
/// Begins the text of a key, because CSV does not distinguish null from an empty text.
const MARK: char = '=';

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// Returns a value as a literal of its type. The engine reads durations from numbers only.
fn literal(value: &str, kind: &str) -> String {
    let value = duration(value, kind).map_or_else(|| text(value), |number| number.to_string());
    format!("arrow_cast({value}, {})", text(kind))
}

/// Returns the number of a duration's units, from a text such as `-1 days -2 hours 0 mins -3.5 secs`.
fn duration(value: &str, kind: &str) -> Option<i128> {
    let unit = match kind {
        "Duration(s)" => 1_000_000_000,
        "Duration(ms)" => 1_000_000,
        "Duration(µs)" => 1000,
        "Duration(ns)" => 1,
        _ => return None,
    };
    let words: Vec<&str> = value.split(' ').collect();
    let parts = words.chunks(2).map(|part| match part {
        [days, "days"] => Some(days.parse::<i128>().ok()? * 86_400_000_000_000),
        [hours, "hours"] => Some(hours.parse::<i128>().ok()? * 3_600_000_000_000),
        [minutes, "mins"] => Some(minutes.parse::<i128>().ok()? * 60_000_000_000),
        [seconds, "secs"] => {
            let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
            format!("{whole}{fraction:0<9}").parse().ok()
        }
        _ => None,
    });
    Some(parts.sum::<Option<i128>>()? / unit)
}

impl Sorted {
    /// Returns the expression for `ORDER BY`. Rows without a value are the last ones.
    fn sql(&self, is_turned: bool) -> String {
        let direction = if self.descends == is_turned { "ASC" } else { "DESC" };
        let nulls = if is_turned { "FIRST" } else { "LAST" };
        format!("{} {direction} NULLS {nulls}", quoted(&self.column))
    }

    /// Returns the condition on rows whose value in this column is behind a key, or in front of it.
    fn beyond(&self, Key(value, kind): &Key, is_turned: bool) -> String {
        let column = quoted(&self.column);
        let Some(value) = value else {
            return if is_turned { format!("{column} IS NOT NULL") } else { "false".to_owned() };
        };
        let sign = if self.descends == is_turned { '>' } else { '<' };
        let beyond = format!("{column} {sign} {}", literal(value, kind));
        if is_turned { beyond } else { format!("({beyond} OR {column} IS NULL)") }
    }

    fn equal(&self, Key(value, kind): &Key) -> String {
        let column = quoted(&self.column);
        match value {
            Some(value) => format!("{column} = {}", literal(value, kind)),
            None => format!("{column} IS NULL"),
        }
    }

    /// Returns the columns that describe the key of a row.
    fn keys(&self, number: usize) -> String {
        let column = quoted(&self.column);
        format!(
            "CASE WHEN {column} IS NULL THEN '' ELSE concat('{MARK}', arrow_cast({column}, 'Utf8')) END AS \"key {number}\", \
             arrow_typeof({column}) AS \"type {number}\""
        )
    }
}

impl Paging {
    /// Fails if the place has other columns than the order.
    pub fn check(&self) -> Result<(), String> {
        let columns = match &self.part {
            Part::First => return Ok(()),
            Part::Last => self.order.len().max(1),
            Part::After(Cursor(keys)) | Part::Before(Cursor(keys)) => keys.len(),
        };
        if columns == self.order.len() {
            Ok(())
        } else {
            Err("after, before and last need the columns of the order: asc or desc".to_owned())
        }
    }

    fn is_turned(&self) -> bool {
        matches!(self.part, Part::Before(_) | Part::Last)
    }

    /// Returns the condition on the rows behind a place, or in front of it.
    fn condition(&self, Cursor(keys): &Cursor, is_turned: bool) -> String {
        let beyond = |at: usize| {
            let equal = self.order[..at].iter().zip(keys).map(|(sorted, key)| sorted.equal(key));
            let parts: Vec<_> = equal.chain([self.order[at].beyond(&keys[at], is_turned)]).collect();
            parts.join(" AND ")
        };
        (0..keys.len()).map(beyond).collect::<Vec<_>>().join(" OR ")
    }

    /// Returns the question for the rows of a page and a further one, with the columns of their keys.
    pub fn sql(&self, table: &str, count: usize) -> String {
        let is_turned = self.is_turned();
        let condition = match &self.part {
            Part::First | Part::Last => "true".to_owned(),
            Part::After(cursor) | Part::Before(cursor) => self.condition(cursor, is_turned),
        };
        let order: Vec<_> = self.order.iter().map(|sorted| sorted.sql(is_turned)).collect();
        let order = order.join(", ");
        let keys: Vec<_> = self.order.iter().enumerate().map(|(number, sorted)| sorted.keys(number)).collect();
        format!(
            "SELECT *, {} FROM (SELECT * FROM ({}\n) WHERE {condition} ORDER BY {order} LIMIT {}) ORDER BY {order}",
            keys.join(", "),
            without_end(table),
            count + 1
        )
    }

    /// Returns the question for the number of rows, and of the rows in front of the page that begins after a place.
    pub fn position(&self, table: &str) -> String {
        let behind = match &self.part {
            Part::After(cursor) => self.condition(cursor, false),
            _ => "true".to_owned(),
        };
        let table = without_end(table);
        format!("SELECT count(*) AS total, count(*) FILTER (WHERE NOT ({behind})) AS before FROM ({table}\n)")
    }

    /// Separates the keys from the rows of an answer, and puts these in their order.
    pub fn page(&self, mut answer: Rows) -> Rows {
        let keys = self.order.len() * KEYS;
        let columns = answer.columns.len().saturating_sub(keys);
        answer.columns.truncate(columns);
        let text = |keys: &[String]| serde_json::to_string(&Cursor::of(keys)).unwrap_or_default();
        answer.cursors = answer.rows.iter_mut().map(|row| text(&row.split_off(columns.min(row.len())))).collect();
        if self.is_turned() {
            answer.rows.reverse();
            answer.cursors.reverse();
        }
        answer
    }
}

/// Returns a query without the semicolon that may end it, so that it can be a part of another.
fn without_end(sql: &str) -> &str {
    sql.trim_end().trim_end_matches(';')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paging(part: Part) -> Paging {
        let sorted = |column: &str, descends| Sorted { column: column.to_owned(), descends };
        Paging { order: vec![sorted("na\"me", true), sorted("flow", false)], part }
    }

    fn cursor(value: Option<&str>) -> Cursor {
        let key = |value: Option<&str>, kind: &str| Key(value.map(str::to_owned), kind.to_owned());
        Cursor(vec![key(value, "Utf8"), key(Some("-7"), "Int64")])
    }

    #[test]
    fn conditions_compare_column_by_column() {
        let flow = |sign: &str| format!("\"flow\" {sign} arrow_cast('-7', 'Int64')");
        let name = |sign: &str| format!("\"na\"\"me\" {sign} arrow_cast('it''s', 'Utf8')");
        for (value, is_turned, expected) in [
            (
                Some("it's"),
                false,
                format!(
                    "({} OR \"na\"\"me\" IS NULL) OR {} AND ({} OR \"flow\" IS NULL)",
                    name("<"),
                    name("="),
                    flow(">")
                ),
            ),
            (Some("it's"), true, format!("{} OR {} AND {}", name(">"), name("="), flow("<"))),
            (None, false, format!("false OR \"na\"\"me\" IS NULL AND ({} OR \"flow\" IS NULL)", flow(">"))),
            (None, true, format!("\"na\"\"me\" IS NOT NULL OR \"na\"\"me\" IS NULL AND {}", flow("<"))),
        ] {
            assert_eq!(paging(Part::First).condition(&cursor(value), is_turned), expected);
        }
    }

    #[test]
    fn pages_before_a_row_are_asked_for_in_the_opposite_order() {
        let sql = paging(Part::Last).sql("SELECT 1 -- ;\n ; ", 10);
        let order = "ORDER BY \"na\"\"me\" ASC NULLS FIRST, \"flow\" DESC NULLS FIRST";
        let end = format!("FROM (SELECT * FROM (SELECT 1 -- ;\n \n) WHERE true {order} LIMIT 11) {order}");
        assert!(sql.ends_with(&end), "{sql}");
        let row = |key: &str| ["x", key, "Utf8", "=-7", "Int64"].map(str::to_owned).to_vec();
        let columns = ["a", "key 0", "type 0", "key 1", "type 1"].map(str::to_owned).to_vec();
        let answer = Rows { columns, rows: vec![row("=it's"), row("")], ..Rows::default() };
        let page = paging(Part::Last).page(answer);
        assert_eq!((page.columns, page.rows), (vec!["a".to_owned()], vec![vec!["x".to_owned()]; 2]));
        let cursors: Vec<_> = page.cursors.iter().map(|text| Cursor::parse(text)).collect();
        assert_eq!(cursors, [Ok(cursor(None)), Ok(cursor(Some("it's")))]);
        assert_eq!(page.cursors[0], r#"[[null,"Utf8"],["-7","Int64"]]"#);
    }

    #[test]
    fn durations_are_numbers() {
        let text = "-2 days -6 hours -57 mins -43.123456 secs";
        assert_eq!(literal(text, "Duration(µs)"), "arrow_cast(-197863123456, 'Duration(µs)')");
        for (value, kind, number) in [
            ("0 days 0 hours 0 mins 5 secs", "Duration(s)", Some(5)),
            ("0 days 0 hours 0 mins -0.500 secs", "Duration(ms)", Some(-500)),
            ("1 days 1 hours 1 mins 1.000000001 secs", "Duration(ns)", Some(90_061_000_000_001)),
            ("5 secs", "Utf8", None),
            ("5", "Duration(s)", None),
        ] {
            assert_eq!(duration(value, kind), number, "{value}");
        }
    }

    #[test]
    fn places_have_the_columns_of_the_order() {
        assert_eq!(paging(Part::After(cursor(None))).check(), Ok(()));
        for part in [Part::After(Cursor(Vec::new())), Part::Before(cursor(None)), Part::Last] {
            let paging = Paging { order: Vec::new(), part };
            assert_eq!(paging.check().is_ok(), matches!(&paging.part, Part::After(_)), "{paging:?}");
        }
        assert!(Cursor::parse("[[1,2]]").is_err());
    }
}
