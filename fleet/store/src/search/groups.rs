//! Row groups of an index file that may have rows of an answer, by their statistics and Bloom filters.

use std::collections::{BTreeSet, HashMap};

use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;

use super::condition::{Condition, Value};
use super::net::text_bounds;
use crate::catalogue::contents::File;

/// Knowledge about the values of some rows.
pub trait Facts {
    /// Returns the smallest and the largest number in a column, if they are known.
    fn numbers(&self, column: &str) -> Option<(i64, i64)>;

    /// Returns true if a column may have a value.
    fn may_have(&self, column: &str, value: &Value) -> bool;

    /// Returns true if a column may have a text between these, or one of them.
    fn may_be_between(&self, column: &str, first: &str, last: &str) -> bool;

    /// Returns true if a column may be without a value in a row.
    fn may_be_null(&self, column: &str) -> bool;

    /// Returns true if a column may have any value.
    fn may_be_set(&self, column: &str) -> bool;
}

impl Condition {
    /// Returns true if one of the rows may meet the condition.
    pub fn may_hold(&self, rows: &impl Facts) -> bool {
        match self {
            Self::OneOf(column, values) => values.iter().any(|value| rows.may_have(column, value)),
            Self::Within(column, from, to) => {
                let within = |(first, last): (i64, i64)| first <= *to && last >= *from;
                rows.may_be_set(column) && rows.numbers(column).is_none_or(within)
            }
            Self::Null(column) => rows.may_be_null(column),
            Self::Net(column, prefix) => {
                let (first, last) = text_bounds(*prefix);
                rows.may_be_set(column) && rows.may_be_between(column, &first, &last)
            }
            Self::NotNull(column) => rows.may_be_set(column),
            Self::All(parts) => parts.iter().all(|part| part.may_hold(rows)),
            Self::Any(parts) => parts.iter().any(|part| part.may_hold(rows)),
            Self::Not(_) => true,
        }
    }

    /// Collects the columns whose values are compared with texts.
    pub fn text_columns<'a>(&'a self, found: &mut BTreeSet<&'a str>) {
        match self {
            Self::OneOf(column, values) if values.iter().any(|value| matches!(value, Value::Text(_))) => {
                found.insert(column);
            }
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.text_columns(found)),
            Self::OneOf(..) | Self::Net(..) | Self::Within(..) | Self::Null(_) | Self::NotNull(_) | Self::Not(_) => {}
        }
    }

    /// Collects the columns that decide about a row.
    pub fn columns<'a>(&'a self, found: &mut BTreeSet<&'a str>) {
        match self {
            Self::OneOf(column, _)
            | Self::Net(column, _)
            | Self::Within(column, ..)
            | Self::Null(column)
            | Self::NotNull(column) => {
                found.insert(column);
            }
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.columns(found)),
            Self::Not(inner) => inner.columns(found),
        }
    }
}

/// The catalogue has the times of a file's rows, and summaries have the addresses of a new file.
impl Facts for File {
    fn numbers(&self, column: &str) -> Option<(i64, i64)> {
        (column == "time_ns").then_some((self.first_ns, self.last_ns))
    }

    fn may_have(&self, column: &str, value: &Value) -> bool {
        match (value, &self.copied) {
            (Value::Text(text), Some(copied)) => copied.addresses.may_have(column, text),
            _ => true,
        }
    }

    fn may_be_between(&self, _: &str, _: &str, _: &str) -> bool {
        true
    }

    fn may_be_null(&self, column: &str) -> bool {
        self.copied.as_ref().is_none_or(|copied| copied.addresses.may_be_null(column))
    }

    fn may_be_set(&self, _: &str) -> bool {
        true
    }
}

/// A row group, and its Bloom filters.
pub struct Group<'a> {
    pub metadata: &'a RowGroupMetaData,
    pub blooms: HashMap<String, Sbbf>,
}

impl<'a> Group<'a> {
    /// Returns a column; `None` if the file lacks it, as an older one may.
    fn column(&self, name: &str) -> Option<&'a ColumnChunkMetaData> {
        self.metadata.columns().iter().find(|column| column.column_path().string() == name)
    }

    fn statistics(&self, name: &str) -> Option<&'a Statistics> {
        self.column(name)?.statistics()
    }

    /// Returns the time of its first packet, if the file has it.
    pub fn first_ns(&self) -> Option<i64> {
        self.numbers("time_ns").map(|(first, _)| first)
    }
}

impl Facts for Group<'_> {
    fn numbers(&self, column: &str) -> Option<(i64, i64)> {
        match self.statistics(column)? {
            Statistics::Int32(one) => Some((i64::from(*one.min_opt()?), i64::from(*one.max_opt()?))),
            Statistics::Int64(one) => Some((*one.min_opt()?, *one.max_opt()?)),
            _ => None,
        }
    }

    fn may_have(&self, column: &str, value: &Value) -> bool {
        let may = match value {
            Value::Number(number) => self.numbers(column).is_none_or(|(first, last)| (first..=last).contains(number)),
            Value::Text(text) => {
                let bloom = self.blooms.get(column);
                self.may_be_between(column, text, text) && bloom.is_none_or(|bloom| bloom.check(text.as_str()))
            }
        };
        may && self.may_be_set(column)
    }

    fn may_be_between(&self, column: &str, first: &str, last: &str) -> bool {
        let Some(statistics) = self.statistics(column) else { return true };
        let least = statistics.min_bytes_opt().is_none_or(|least| least <= last.as_bytes());
        let most = statistics.max_bytes_opt().is_none_or(|most| first.as_bytes() <= most);
        least && most
    }

    fn may_be_null(&self, column: &str) -> bool {
        let count = self.statistics(column).and_then(Statistics::null_count_opt);
        self.column(column).is_none() || count != Some(0)
    }

    fn may_be_set(&self, column: &str) -> bool {
        let rows = u64::try_from(self.metadata.num_rows()).ok();
        let count = self.statistics(column).and_then(Statistics::null_count_opt);
        self.column(column).is_some() && (count.is_none() || count != rows)
    }
}
