//! Code blocks of documents, which tests run or check.

/// Lines between two fences of a Markdown page.
#[derive(Debug)]
pub struct CodeBlock<'p> {
    /// Text after the opening fence, such as `sh tested`.
    pub opening: &'p str,
    /// Lines of the block, without the fences.
    pub lines: Vec<&'p str>,
}

fn after_fence(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("```")
}

/// Returns all code blocks of a Markdown page, whose fences may be indented.
pub fn code_blocks(page: &str) -> Vec<CodeBlock<'_>> {
    let (mut blocks, mut lines) = (Vec::new(), page.lines());
    while let Some(opening) = lines.find_map(after_fence) {
        let content = lines.by_ref().take_while(|line| after_fence(line).is_none());
        blocks.push(CodeBlock { opening, lines: content.collect() });
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_at_their_fences() {
        let page = "text\n```sh tested\nls\n\n```\n$ no\n  ```\n  a\n  ```\n";
        let blocks = code_blocks(page);
        let found: Vec<_> = blocks.iter().map(|block| (block.opening, &block.lines[..])).collect();
        assert_eq!(found, [("sh tested", &["ls", ""][..]), ("", &["  a"][..])]);
    }
}
