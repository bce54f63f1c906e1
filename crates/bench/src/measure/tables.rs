//! Formats serializable data: scalars as lines, lists of objects as tables.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Deserialize as Derive, Serialize};
use softswap_cli::units;

/// A JSON value. Unlike `serde_json`'s, objects keep the order of their fields.
#[derive(Debug, Clone, Derive)]
#[serde(untagged)]
enum Node {
    Nothing(()),
    Flag(bool),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Object(Fields),
}

#[derive(Debug, Clone, Default)]
struct Fields(Vec<(String, Node)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Fields, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                std::iter::from_fn(|| map.next_entry().transpose())
                    .collect::<Result<_, _>>()
                    .map(Fields)
            }
        }
        from.deserialize_map(InOrder)
    }
}

/// Keys that are not shown in tables.
const HIDDEN: [&str; 3] = ["schema", "bench", "analysis"];

/// Formats all of `found` as text.
pub(crate) fn of(found: &impl Serialize) -> String {
    let text = serde_json::to_string(found).unwrap_or_default();
    let Fields(fields) = serde_json::from_str(&text).unwrap_or_default();
    let shown = fields.iter().filter(|(key, _)| !HIDDEN.contains(&key.as_str()));
    shown.map(|(key, node)| section(key, node)).collect()
}

fn section(key: &str, node: &Node) -> String {
    match node {
        Node::Object(Fields(fields)) if key == "machine" => {
            let parts: Vec<_> = fields.iter().map(|(key, node)| scalar(key, node)).collect();
            match &parts[..] {
                [cpu, cpus, kernel, device] => {
                    format!("{cpu}, {cpus} CPUs, Linux {kernel}, {device}\n")
                }
                _ => parts.join(", ") + "\n",
            }
        }
        Node::Object(Fields(fields)) if fields.is_empty() => String::new(),
        Node::Object(Fields(fields)) => {
            if fields.iter().all(|(_, node)| matches!(node, Node::Object(_))) {
                return table(key, &fields.iter().map(named).collect::<Vec<_>>());
            }
            let lines = fields.iter().map(|(name, node)| section(name, node));
            format!("\n{}", lines.collect::<String>())
        }
        Node::List(all) if all.iter().all(|one| matches!(one, Node::Object(_))) => table(key, all),
        Node::List(all) => all.iter().map(|one| scalar(key, one) + "\n").collect(),
        _ => format!("{key}: {}\n", scalar(key, node)),
    }
}

/// Converts a field to a row with the field's name and value.
fn named((name, node): &(String, Node)) -> Node {
    let Node::Object(Fields(fields)) = node else { return node.clone() };
    let name = ("name".into(), Node::Text(name.clone()));
    Node::Object(Fields([name].into_iter().chain(fields.iter().cloned()).collect()))
}

/// Formats objects as a table. Nested objects get their own columns; nested lists follow as tables.
fn table(title: &str, rows: &[Node]) -> String {
    let (mut columns, mut lines, mut below) = (Vec::<String>::new(), Vec::new(), String::new());
    for row in rows {
        let (mut cells, mut name) = (Vec::new(), None);
        for (key, node) in flattened("", row) {
            let name = name.get_or_insert_with(|| scalar(&key, &node));
            if matches!(node, Node::List(_)) {
                below += &section(&format!("{name}: {key}"), &node);
                continue;
            }
            if !columns.contains(&key) {
                columns.push(key.clone());
            }
            cells.push((key, node));
        }
        lines.push(cells);
    }
    if columns.is_empty() {
        return String::new();
    }
    let mut text = vec![String::new(); lines.len() + 1];
    for (at, column) in columns.iter().enumerate() {
        let cells = lines.iter().map(|cells| cells.iter().find(|(key, _)| key == column));
        let is_text = cells.clone().flatten().any(|(_, node)| matches!(node, Node::Text(_)));
        let cells = cells.map(|cell| cell.map_or("-".into(), |(key, node)| scalar(key, node)));
        let cells: Vec<_> = [column.clone()].into_iter().chain(cells).collect();
        let width = cells.iter().map(String::len).max().unwrap_or(0);
        for (line, cell) in text.iter_mut().zip(cells) {
            *line += if at > 0 { "  " } else { "" };
            *line += &if is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
        }
    }
    let lines: String = text.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    format!("\n{title}\n{lines}{below}")
}

fn flattened(prefix: &str, node: &Node) -> Vec<(String, Node)> {
    let Node::Object(Fields(fields)) = node else { return Vec::new() };
    let cells = fields.iter().flat_map(|(key, node)| match node {
        Node::Object(_) => flattened(&format!("{prefix}{key}."), node),
        _ => vec![(format!("{prefix}{key}"), node.clone())],
    });
    cells.collect()
}

/// Formats one value in the unit named by its key.
fn scalar(key: &str, node: &Node) -> String {
    let number = match node {
        Node::Flag(flag) => return if *flag { "yes" } else { "no" }.into(),
        Node::Text(text) => return text.clone(),
        Node::Number(number) => *number,
        Node::Nothing(()) | Node::List(_) | Node::Object(_) => return "-".into(),
    };
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
        let rows =
            json!([{"a": "poll", "cov": 0.125, "us": 44.96}, {"a": "x", "cov": 1.0, "us": null}]);
        assert_eq!(
            super::of(&json!({"schema": 2, "rows": rows})),
            "\nrows\na         cov    us\npoll   12.5 %  45.0\nx     100.0 %     -\n"
        );
        let lines = json!({"size_bytes": 4096, "ratios": {"a_vs_b": 1.5}});
        assert_eq!(super::of(&lines), "\na_vs_b: 1.50\nsize_bytes: 4.0 KiB\n");
    }
}
