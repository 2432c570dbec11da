"""What the audit is measured with: honest programs, planted violations, mutants."""
