//! Conditions on rows as DataFusion's expressions.

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::{Expr, in_list};
use datafusion::prelude::{col, lit};
use trawl_store::schema;
use trawl_store::search::condition::{Condition, Value};

use crate::net::in_net;

/// Returns the expression that is true for the rows that meet a condition.
pub fn expression(condition: &Condition) -> Expr {
    match condition {
        Condition::OneOf(column, values) => match &values[..] {
            [one] => col(column.as_ref()).eq(literal(column, one)),
            _ => in_list(col(column.as_ref()), values.iter().map(|value| literal(column, value)).collect(), false),
        },
        Condition::Net(column, prefix) => in_net(col(column.as_ref()), lit(prefix.to_string())),
        Condition::Within(column, from, to) => {
            let [from, to] = [from, to].map(|bound| literal(column, &Value::Number(*bound)));
            col(column.as_ref()).between(from, to)
        }
        Condition::Null(column) => col(column.as_ref()).is_null(),
        Condition::NotNull(column) => col(column.as_ref()).is_not_null(),
        Condition::All(parts) => joined(parts, Expr::and),
        Condition::Any(parts) => joined(parts, Expr::or),
        Condition::Not(inner) => expression(inner).is_not_true(),
    }
}

/// Returns a value of the column's type, which the pruning of files requires.
fn literal(column: &str, value: &Value) -> Expr {
    let is_int = || schema().field_with_name(column).is_ok_and(|field| *field.data_type() == DataType::Int32);
    match value {
        Value::Text(text) => lit(text),
        Value::Number(number) => match i32::try_from(*number) {
            Ok(small) if is_int() => lit(small),
            _ => lit(*number),
        },
    }
}

/// Joins conditions as a tree of low depth.
fn joined(parts: &[Condition], join: fn(Expr, Expr) -> Expr) -> Expr {
    match parts {
        [] => lit(true),
        [one] => expression(one),
        _ => {
            let (left, right) = parts.split_at(parts.len() / 2);
            join(joined(left, join), joined(right, join))
        }
    }
}
