//! Tables of whatever can be serialized: scalars as lines, lists of objects as tables.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Deserialize as Derive, Serialize};
use softswap_cli::units;

/// A JSON value. Unlike those of `serde_json`, objects keep the order of their fields.
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
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(InOrder)
    }
}

/// Keys that say nothing to people.
const UNTOLD: [&str; 3] = ["schema", "bench", "analysis"];

/// All of `found` as text.
pub(crate) fn of(found: &(impl Serialize + ?Sized)) -> String {
    let text = serde_json::to_string(found).unwrap_or_default();
    let Fields(fields) = serde_json::from_str(&text).unwrap_or_default();
    let mut text = String::new();
    for (key, node) in fields.iter().filter(|(key, _)| !UNTOLD.contains(&key.as_str())) {
        text += &match (key.as_str(), node) {
            ("machine", Node::Object(machine)) => machine_line(machine),
            _ => section(key, node),
        };
    }
    text
}

fn machine_line(Fields(machine): &Fields) -> String {
    let of = |wanted: &str| {
        let found = machine.iter().find(|(key, _)| key == wanted);
        found.map_or(String::new(), |(key, node)| scalar(key, node))
    };
    format!("{}, {} CPUs, Linux {}, {}\n", of("cpu"), of("cpus"), of("kernel"), of("device"))
}

fn section(key: &str, node: &Node) -> String {
    match node {
        Node::List(all) if all.iter().all(|one| matches!(one, Node::Object(_))) => table(key, all),
        Node::List(all) => all.iter().map(|one| scalar(key, one) + "\n").collect(),
        Node::Object(Fields(fields)) => {
            let is_table = |(_, node): &(String, Node)| matches!(node, Node::Object(_));
            if !fields.is_empty() && fields.iter().all(is_table) {
                return table(key, &fields.iter().map(named).collect::<Vec<_>>());
            }
            let lines = fields.iter().map(|(name, node)| section(name, node));
            if fields.is_empty() {
                String::new()
            } else {
                format!("\n{}", lines.collect::<String>())
            }
        }
        _ => format!("{key}: {}\n", scalar(key, node)),
    }
}

/// A field as a row: its name, then what it holds.
fn named((name, node): &(String, Node)) -> Node {
    let Node::Object(Fields(fields)) = node else { return node.clone() };
    let name = (String::from("name"), Node::Text(name.clone()));
    Node::Object(Fields([name].into_iter().chain(fields.iter().cloned()).collect()))
}

/// A table of objects. Objects in them have columns of their own; lists in them follow as tables.
fn table(title: &str, rows: &[Node]) -> String {
    let (mut columns, mut lines, mut below) = (Vec::new(), Vec::new(), String::new());
    for row in rows {
        let mut cells = Vec::new();
        flatten("", row, &mut cells);
        let name = cells.first().map_or(String::new(), |(key, node)| scalar(key, node));
        let (lists, cells): (Vec<_>, Vec<_>) =
            cells.into_iter().partition(|(_, node)| matches!(node, Node::List(_)));
        for (key, _) in &cells {
            if !columns.contains(key) {
                columns.push(key.clone());
            }
        }
        lines.push(cells);
        below += &lists
            .iter()
            .map(|(key, node)| section(&format!("{name}: {key}"), node))
            .collect::<String>();
    }
    if columns.is_empty() {
        return String::new();
    }
    let cell = |cells: &[(String, Node)], column: &String| {
        cells.iter().find(|(key, _)| key == column).map_or(("-".into(), false), |(key, node)| {
            (scalar(key, node), matches!(node, Node::Text(_)))
        })
    };
    let mut text: Vec<String> = vec![String::new(); lines.len() + 1];
    for (at, column) in columns.iter().enumerate() {
        let cells: Vec<(String, bool)> = lines.iter().map(|cells| cell(cells, column)).collect();
        let is_text = cells.iter().any(|(_, is_text)| *is_text);
        let width = cells.iter().map(|(text, _)| text.len()).max().unwrap_or(0).max(column.len());
        let all = [column.as_str()].into_iter().chain(cells.iter().map(|(text, _)| text.as_str()));
        for (line, cell) in text.iter_mut().zip(all) {
            *line += if at > 0 { "  " } else { "" };
            *line += &if is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
        }
    }
    let lines: String = text.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    format!("\n{title}\n{lines}{below}")
}

fn flatten(prefix: &str, node: &Node, cells: &mut Vec<(String, Node)>) {
    let Node::Object(Fields(fields)) = node else { return };
    for (key, node) in fields {
        let key = format!("{prefix}{key}");
        match node {
            Node::Object(_) => flatten(&format!("{key}."), node, cells),
            _ => cells.push((key, node.clone())),
        }
    }
}

/// One value, in the unit that its key names.
fn scalar(key: &str, node: &Node) -> String {
    match node {
        Node::Flag(flag) => if *flag { "yes" } else { "no" }.into(),
        Node::Text(text) => text.clone(),
        Node::Number(number) => {
            let number = *number;
            match number.abs() {
                _ if key.ends_with("share") || key.ends_with("cov") => {
                    format!("{:.1} %", number * 100.0)
                }
                _ if key.ends_with("bytes") => units::bytes(number as u64),
                least if number.fract() == 0.0 && least < 1e15 && number >= 0.0 => {
                    units::count(number as u64)
                }
                1000.0.. if number > 0.0 => units::count(number.round() as u64),
                100.0.. => format!("{number:.0}"),
                10.0.. => format!("{number:.1}"),
                0.1.. => format!("{number:.2}"),
                _ => format!("{number:.4}"),
            }
        }
        Node::Nothing(()) | Node::List(_) | Node::Object(_) => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn lists_of_objects_become_tables_and_keys_name_the_units() {
        #[derive(serde::Serialize)]
        struct Row {
            variant: &'static str,
            cov: f64,
            us: Option<f64>,
        }
        let rows = [
            Row { variant: "poll", cov: 0.125, us: Some(44.96) },
            Row { variant: "x", cov: 1.0, us: None },
        ];
        let text = super::of(
            &json!({"schema": 2, "rows": rows, "size_bytes": 4096, "ratios": {"a_vs_b": 1.5}}),
        );
        assert!(
            text.contains("size_bytes: 4.0 KiB\n") && text.contains("\na_vs_b: 1.50\n"),
            "{text}"
        );
        assert!(
            text.contains("12.5 %") && text.contains("45.0") && !text.contains("schema"),
            "{text}"
        );
        let rows =
            super::of(&[("rows", rows)].into_iter().collect::<std::collections::BTreeMap<_, _>>());
        assert_eq!(
            rows,
            "\nrows\nvariant      cov    us\npoll      12.5 %  45.0\nx        100.0 %     -\n"
        );
    }
}
