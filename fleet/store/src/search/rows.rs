//! Rows of the index that meet a condition.

use std::collections::HashSet;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_buffer::BooleanBuffer;
use arrow_cast::cast;
use arrow_schema::ArrowError;
use arrow_schema::DataType;

use super::condition::{Condition, Value};

type Result<T> = std::result::Result<T, ArrowError>;

impl Condition {
    /// Returns the rows that meet the condition. A column that the rows lack has no values.
    pub fn holds(&self, rows: &RecordBatch) -> Result<BooleanArray> {
        Ok(BooleanArray::new(self.evaluate(rows)?, None))
    }

    fn evaluate(&self, rows: &RecordBatch) -> Result<BooleanBuffer> {
        let count = rows.num_rows();
        let none = || BooleanBuffer::new_unset(count);
        match self {
            Self::OneOf(column, values) => {
                rows.column_by_name(column).map_or(Ok(none()), |array| one_of(array, values))
            }
            Self::Net(column, prefix) => rows.column_by_name(column).map_or(Ok(none()), |array| {
                let texts = cast(array, &DataType::Utf8View)?;
                let texts = texts.as_string_view();
                let is_within = |at: usize| {
                    texts.is_valid(at) && texts.value(at).parse().is_ok_and(|address| prefix.contains(address))
                };
                Ok(BooleanBuffer::collect_bool(count, is_within))
            }),
            Self::Within(column, from, to) => rows.column_by_name(column).map_or(Ok(none()), |array| {
                let numbers = cast(array, &DataType::Int64)?;
                let numbers = numbers.as_primitive::<Int64Type>();
                let is_within = |at: usize| numbers.is_valid(at) && (*from..=*to).contains(&numbers.value(at));
                Ok(BooleanBuffer::collect_bool(count, is_within))
            }),
            Self::Null(column) => Ok(!&set(rows, column)),
            Self::NotNull(column) => Ok(set(rows, column)),
            Self::All(parts) => {
                let all = BooleanBuffer::new_set(count);
                parts.iter().try_fold(all, |all, part| Ok(&all & &part.evaluate(rows)?))
            }
            Self::Any(parts) => parts.iter().try_fold(none(), |any, part| Ok(&any | &part.evaluate(rows)?)),
            Self::Not(inner) => Ok(!&inner.evaluate(rows)?),
        }
    }
}

/// Returns the rows with a value in a column.
fn set(rows: &RecordBatch, column: &str) -> BooleanBuffer {
    let count = rows.num_rows();
    let Some(array) = rows.column_by_name(column) else {
        return BooleanBuffer::new_unset(count);
    };
    array.logical_nulls().map_or_else(|| BooleanBuffer::new_set(count), |nulls| nulls.inner().clone())
}

fn one_of(array: &ArrayRef, values: &[Value]) -> Result<BooleanBuffer> {
    let texts: HashSet<&str> = values
        .iter()
        .filter_map(|value| match value {
            Value::Text(text) => Some(text.as_str()),
            Value::Number(_) => None,
        })
        .collect();
    if !texts.is_empty() {
        let array = cast(array, &DataType::Utf8View)?;
        let array = array.as_string_view();
        let is_one = |at: usize| array.is_valid(at) && texts.contains(array.value(at));
        return Ok(BooleanBuffer::collect_bool(array.len(), is_one));
    }
    let numbers: HashSet<i64> = values
        .iter()
        .filter_map(|value| match value {
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        })
        .collect();
    let array = cast(array, &DataType::Int64)?;
    let array = array.as_primitive::<Int64Type>();
    let is_one = |at: usize| array.is_valid(at) && numbers.contains(&array.value(at));
    Ok(BooleanBuffer::collect_bool(array.len(), is_one))
}
