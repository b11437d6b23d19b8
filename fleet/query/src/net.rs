//! The function `in_net(src, '10.0.0.0/8')`, which is true for addresses in a network, and its operator in PostgreSQL,
//! `src <<= '10.0.0.0/8'`.

use std::net::IpAddr;
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, BooleanArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{DFSchema, ScalarValue, plan_datafusion_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::lit;
use datafusion::sql::sqlparser::ast::BinaryOperator;
use trawl_packet::net::prefix::Prefix;
use trawl_store::search::net::text_bounds;

const NAME: &str = "in_net";
/// The operator of PostgreSQL for addresses within a network.
pub const WITHIN: &str = "<<=";

#[derive(Debug, PartialEq, Eq, Hash)]
struct InNet(Signature);

/// Returns the function for queries.
pub fn function() -> ScalarUDF {
    ScalarUDF::from(InNet(Signature::any(2, Volatility::Immutable)))
}

/// Returns a call of the function.
pub fn in_net(address: Expr, prefix: Expr) -> Expr {
    function().call(vec![address, prefix])
}

impl ScalarUDFImpl for InNet {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    /// Fails, before the query starts, for arguments of other types and for an invalid prefix.
    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        if !matches!(args.arg_fields[0].data_type(), DataType::Utf8 | DataType::Utf8View | DataType::Null) {
            return plan_err!("{NAME} compares texts such as src and dst: write {NAME}(src, '10.0.0.0/8')");
        }
        let prefix = args.scalar_arguments.get(1).copied().flatten();
        parse(prefix)?;
        Ok(Arc::new(Field::new(NAME, DataType::Boolean, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [addresses, prefix] = &args.args[..] else {
            return plan_err!("{NAME} has two arguments: write {NAME}(src, '10.0.0.0/8')");
        };
        let net = Net::of(match prefix {
            ColumnarValue::Scalar(prefix) => parse(Some(prefix))?,
            ColumnarValue::Array(_) => parse(None)?,
        });
        let texts = cast(&addresses.to_array(args.number_rows)?, &DataType::Utf8View)?;
        let within = texts.as_string_view().iter().map(|text| text.map(|text| net.contains(text)));
        Ok(ColumnarValue::Array(Arc::new(within.collect::<BooleanArray>())))
    }
}

fn parse(prefix: Option<&ScalarValue>) -> Result<Prefix> {
    let Some(text) = prefix.and_then(|prefix| prefix.try_as_str().flatten()) else {
        return plan_err!("the network is no text: write {NAME}(src, '10.0.0.0/8') or src {WITHIN} '10.0.0.0/8'");
    };
    text.parse().map_err(|why: String| plan_datafusion_err!("{why}"))
}

/// Plans the operator as a call of the function.
#[derive(Debug)]
pub struct Operators;

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, expr: RawBinaryExpr, _: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        Ok(match &expr.op {
            BinaryOperator::Custom(operator) if operator == WITHIN => {
                PlannerResult::Planned(in_net(expr.left, expr.right))
            }
            _ => PlannerResult::Original(expr),
        })
    }
}

/// A network whose addresses are texts.
struct Net {
    prefix: Prefix,
    /// Texts between which all its addresses are in alphabetical order.
    first: String,
    last: String,
}

impl Net {
    fn of(prefix: Prefix) -> Self {
        let (first, last) = text_bounds(prefix);
        Self { prefix, first, last }
    }

    fn contains(&self, address: &str) -> bool {
        // Most addresses outside of the network need not be parsed.
        (&*self.first..=&*self.last).contains(&address)
            && address.parse::<IpAddr>().is_ok_and(|address| self.prefix.contains(address))
    }
}

pub fn is_in_net(call: &ScalarFunction) -> bool {
    call.name() == NAME
}

/// Returns a condition on the text of an address that holds for all addresses for which a call of the function does.
/// Statistics can refute it.
pub fn text_condition(call: &ScalarFunction) -> Option<Expr> {
    let [column, Expr::Literal(prefix, _)] = &call.args[..] else { return None };
    let prefix = parse(Some(prefix)).ok()?;
    if prefix == Prefix::host(prefix.address()) {
        return Some(column.clone().eq(lit(prefix.address().to_string())));
    }
    let (first, last) = text_bounds(prefix);
    Some(column.clone().between(lit(first), lit(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(prefix: &str) -> Net {
        Net::of(prefix.parse().expect("a prefix"))
    }

    #[test]
    fn net_contains_exactly_its_addresses() {
        // The addresses at both ends of networks of every length, and those next to them.
        let mut within = 0;
        for address in ["10.99.0.7", "172.16.200.1", "2001:db8:0:1::ff", "fe80::1:0:9", "::ffff:10.0.0.1"] {
            let address: IpAddr = address.parse().expect("an address");
            for length in 0..=if address.is_ipv4() { 32 } else { 128 } {
                let prefix = Prefix::new(address, length).expect("a prefix");
                let net = Net::of(prefix);
                for tested in neighbours(prefix) {
                    assert_eq!(net.contains(&tested.to_string()), prefix.contains(tested), "{tested} in {prefix}");
                    within += u32::from(prefix.contains(tested));
                }
            }
        }
        assert!(within > 600, "{within}");
        assert!(!net("10.0.0.0/8").contains("10.0"));
    }

    /// Returns the first and the last address of a network, and the addresses before and after it.
    fn neighbours(prefix: Prefix) -> [IpAddr; 4] {
        match (prefix.address(), prefix.last()) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                let (before, after) = (first.to_bits().wrapping_sub(1), last.to_bits().wrapping_add(1));
                [first.into(), last.into(), IpAddr::V4(before.into()), IpAddr::V4(after.into())]
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                let (before, after) = (first.to_bits().wrapping_sub(1), last.to_bits().wrapping_add(1));
                [first.into(), last.into(), IpAddr::V6(before.into()), IpAddr::V6(after.into())]
            }
            _ => unreachable!("a network has addresses of one kind"),
        }
    }
}
