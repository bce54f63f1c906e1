//! Formats JSON: scalars as lines, lists of objects as tables.

use serde_json::{Map, Value};
use softswap_cli::units;

const HIDDEN: [&str; 3] = ["schema", "bench", "analysis"];

pub(crate) fn of(found: &Map<String, Value>) -> String {
    let shown = found.iter().filter(|(key, _)| !HIDDEN.contains(&key.as_str()));
    shown.map(|(key, value)| section(key, value)).collect()
}

fn section(key: &str, value: &Value) -> String {
    match value {
        Value::Object(fields) if key == "machine" => {
            let of = |key: &str| scalar(key, &fields[key]);
            let [cpu, cpus] = [of("cpu"), of("cpus")];
            format!("{cpu}, {cpus} CPUs, Linux {}, {}\n", of("kernel"), of("device"))
        }
        Value::Object(fields) if fields.is_empty() => String::new(),
        Value::Object(fields) => {
            let lines = fields.iter().map(|(name, value)| section(name, value));
            format!("\n{}", lines.collect::<String>())
        }
        Value::Array(all) if all.iter().all(Value::is_object) => table(key, all),
        Value::Array(all) => all.iter().map(|one| scalar(key, one) + "\n").collect(),
        _ => format!("{key}: {}\n", scalar(key, value)),
    }
}

/// Nested lists follow as tables.
fn table(title: &str, rows: &[Value]) -> String {
    let rows: Vec<_> = rows.iter().filter_map(Value::as_object).collect();
    let (mut columns, mut below) = (Vec::<&str>::new(), String::new());
    for row in &rows {
        let name = row.iter().next().map_or(String::new(), |(key, value)| scalar(key, value));
        for (key, value) in *row {
            if value.is_array() {
                below += &section(&format!("{name}: {key}"), value);
            } else if !columns.contains(&key.as_str()) {
                columns.push(key);
            }
        }
    }
    if columns.is_empty() {
        return String::new();
    }
    let mut text = vec![String::new(); rows.len() + 1];
    for (at, column) in columns.into_iter().enumerate() {
        let values = || rows.iter().map(|row| row.get(column));
        let is_text = values().flatten().any(Value::is_string);
        let cells = values().map(|cell| cell.map_or("-".into(), |value| scalar(column, value)));
        let cells: Vec<String> = [column.into()].into_iter().chain(cells).collect();
        let width = cells.iter().map(String::len).max().unwrap_or(0);
        for (line, cell) in text.iter_mut().zip(cells) {
            *line += if at > 0 { "  " } else { "" };
            *line += &if is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
        }
    }
    let lines: String = text.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    format!("\n{title}\n{lines}{below}")
}

fn scalar(key: &str, value: &Value) -> String {
    let number = match value {
        Value::Bool(flag) => return if *flag { "yes" } else { "no" }.into(),
        Value::String(text) => return text.clone(),
        _ => value.as_f64(),
    };
    let Some(number) = number else { return "-".into() };
    match number.abs() {
        _ if key.ends_with("share") || key.ends_with("cov") => format!("{:.1} %", number * 100.0),
        _ if key.ends_with("bytes") => units::bytes(number as u64),
        1000.0.. if number > 0.0 => units::count(number.round() as u64),
        least if least == number && least.fract() == 0.0 => units::count(number as u64),
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        0.1.. => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn object_lists_become_tables_with_units_from_keys() {
        let of = |value: serde_json::Value| super::of(value.as_object().unwrap());
        let rows =
            json!([{"a": "poll", "cov": 0.125, "us": 44.96}, {"a": "x", "cov": 1.0, "us": null}]);
        assert_eq!(
            of(json!({"schema": 3, "rows": rows})),
            "\nrows\na         cov    us\npoll   12.5 %  45.0\nx     100.0 %     -\n"
        );
        let lines = json!({"size_bytes": 4096, "ratios": {"a_vs_b": 1.5}});
        assert_eq!(of(lines), "size_bytes: 4.0 KiB\n\na_vs_b: 1.50\n");
    }
}
