//! The tables `flows` and `sightings`, views of the packets (`flows.sql`), and the functions that they use.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray, UInt64Array};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{DataType, Int32Type};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, create_udf,
};
use datafusion::prelude::SessionContext;
use trawl_store::flow_number;

/// The rows of a table, and its columns about the place at which packets were seen: a hook of a host's interface.
struct Grouping {
    /// Columns of which each combination has a row.
    place: &'static str,
    /// Condition on packets that were seen on the second side of their translation.
    is_second: &'static str,
    /// Columns of all places in a row.
    seen_at: &'static str,
    /// The columns of the table.
    columns: &'static str,
}

/// A row for each conversation.
const FLOWS: Grouping = Grouping {
    place: "",
    is_second: "nat_flow < flow",
    seen_at: "names(array_agg(host)) AS hosts, names(array_agg(interface)) AS interfaces, \
              names(array_agg(capture)) AS captures,",
    columns: "copied(hosts) AS hosts, copied(interfaces) AS interfaces, copied(captures) AS captures,",
};

/// A row for each place that saw a conversation.
const SIGHTINGS: Grouping = Grouping {
    place: "capture, host, interface, hook,",
    is_second: "false",
    seen_at: "",
    columns: "capture, host, interface, hook,",
};

impl Grouping {
    fn sql(&self) -> String {
        let sql = include_str!("flows/flows.sql").replace("{place}", self.place);
        let sql = sql.replace("{is_second}", self.is_second).replace("{seen_at}", self.seen_at);
        sql.replace("{columns}", self.columns)
    }
}

/// Adds the tables to a context with the table `packets`.
pub async fn register(context: &SessionContext) -> Result<()> {
    context.register_udf(flow_number_function());
    context.register_udf(names_function());
    context.register_udf(ScalarUDF::from(Copied(Signature::any(1, Volatility::Immutable))));
    for (name, grouping) in [("flows", FLOWS), ("sightings", SIGHTINGS)] {
        let view = context.sql(&grouping.sql()).await?.into_view();
        context.register_table(name, view)?;
    }
    Ok(())
}

/// Returns the function `flow_number(src, sport, dst, dport, protocol)`: the number that the index gives a flow.
fn flow_number_function() -> ScalarUDF {
    let types = vec![DataType::Utf8View, DataType::Int32, DataType::Utf8View, DataType::Int32, DataType::Int32];
    let function = |columns: &[ColumnarValue]| {
        let columns = ColumnarValue::values_to_arrays(columns)?;
        let address = |at: usize, row: usize| -> Option<IpAddr> {
            let texts = columns[at].as_string_view();
            texts.is_valid(row).then(|| texts.value(row))?.parse().ok()
        };
        let number = |at: usize, row: usize| {
            let numbers = columns[at].as_primitive::<Int32Type>();
            numbers.is_valid(row).then(|| numbers.value(row))
        };
        // ICMP has no ports.
        let port = |at, row| u16::try_from(number(at, row).unwrap_or(0)).ok();
        let flow = |row| {
            let ends =
                [SocketAddr::new(address(0, row)?, port(1, row)?), SocketAddr::new(address(2, row)?, port(3, row)?)];
            Some(flow_number(u8::try_from(number(4, row)?).ok()?, ends))
        };
        let flows: Int64Array = (0..columns[0].len()).map(flow).collect();
        Ok(ColumnarValue::Array(Arc::new(flows)))
    };
    create_udf("flow_number", types, DataType::Int64, Volatility::Immutable, Arc::new(function))
}

/// Returns the function `names(list)`: the different texts of a list, in alphabetical order with commas between them.
fn names_function() -> ScalarUDF {
    let types = vec![DataType::new_list(DataType::Utf8, true)];
    let function = |columns: &[ColumnarValue]| {
        let columns = ColumnarValue::values_to_arrays(columns)?;
        let lists = columns[0].as_list::<i32>().iter();
        let texts: StringArray = lists.map(|list| list.map(|texts| names(&texts))).collect();
        Ok(ColumnarValue::Array(Arc::new(texts)))
    };
    create_udf("names", types, DataType::Utf8, Volatility::Immutable, Arc::new(function))
}

/// The function `copied(column)`, whose values share no memory with other rows of the column.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Copied(Signature);

impl ScalarUDFImpl for Copied {
    fn name(&self) -> &'static str {
        "copied"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let column = args.args[0].to_array(args.number_rows)?;
        let rows: UInt64Array = (0..column.len() as u64).collect();
        Ok(ColumnarValue::Array(take(&column, &rows, None)?))
    }
}

fn names(texts: &ArrayRef) -> String {
    let different: BTreeSet<&str> = texts.as_string::<i32>().iter().flatten().collect();
    different.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{Field, Int64Type};
    use datafusion::datasource::empty::EmptyTable;
    use datafusion::physical_plan::SendableRecordBatchStream;
    use futures_util::StreamExt;

    use super::*;

    async fn answer(sql: &str) -> SendableRecordBatchStream {
        let context = SessionContext::new();
        context.register_table("packets", Arc::new(EmptyTable::new(trawl_store::schema()))).expect("a table");
        register(&context).await.expect("views");
        context.sql(sql).await.expect("a query").execute_stream().await.expect("an answer")
    }

    #[tokio::test]
    async fn memory_of_rows_is_counted_exactly() {
        let flows = answer("SELECT * FROM flows").await;
        let views = flows.schema().fields().iter().filter(|field| *field.data_type() == DataType::Utf8View).count();
        assert_eq!(views, 0, "views of texts share memory: {:?}", flows.schema());
        let column: ArrayRef = Arc::new((0..1_000_000).collect::<Int64Array>());
        let args = ScalarFunctionArgs {
            args: vec![ColumnarValue::Array(column.slice(7, 3))],
            arg_fields: Vec::new(),
            number_rows: 3,
            return_field: Arc::new(Field::new("n", DataType::Int64, true)),
            config_options: Arc::default(),
        };
        let copied = Copied(Signature::any(1, Volatility::Immutable)).invoke_with_args(args).expect("a column");
        let copied = copied.to_array(3).expect("a column");
        assert_eq!(copied.as_primitive::<Int64Type>().values(), &[7, 8, 9]);
        assert!(copied.get_buffer_memory_size() < 1000);
        let mut rows = answer("SELECT copied(arrow_cast('x', 'LargeUtf8')) AS a, copied(NULL) IS NULL AS b").await;
        let row = rows.next().await.expect("a row").expect("a row");
        assert_eq!(row.schema().field(0).data_type(), &DataType::LargeUtf8);
        assert!(row.column(1).as_boolean().value(0));
    }
}
