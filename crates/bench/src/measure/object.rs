//! JSON objects: results of commands, and their rows.

use serde_json::{Map, Value};

/// A JSON object. The order of its keys is kept in JSON and in tables.
pub(crate) type Object = Map<String, Value>;

/// Builds a JSON object with the syntax of struct fields: `object! { variant, us: figure / 1e3 }`.
macro_rules! object {
    (@value $name:ident) => { $name };
    (@value $name:ident $value:expr) => { $value };
    ($($name:ident $(: $value:expr)?),* $(,)?) => {
        $crate::measure::object::Object::from_iter([
            $((stringify!($name).to_string(), serde_json::json!(object!(@value $name $($value)?)))),*
        ])
    };
}
pub(crate) use object;
