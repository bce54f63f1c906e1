//! Table rows.

use serde::{Serialize, Serializer};
use serde_json::Value;

/// A row: column names and values, whose order is kept in JSON and in tables.
#[derive(Debug, Clone)]
pub(crate) struct Row(pub(crate) Vec<(&'static str, Value)>);

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Builds a row with the syntax of struct fields: `row! { variant, us: figure / 1000.0 }`.
macro_rules! row {
    (@value $name:ident) => { $name };
    (@value $name:ident $value:expr) => { $value };
    ($($name:ident $(: $value:expr)?),* $(,)?) => {
        $crate::measure::row::Row(vec![
            $((stringify!($name), serde_json::json!(row!(@value $name $($value)?)))),*
        ])
    };
}
pub(crate) use row;
