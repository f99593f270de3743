"""From what was played to numbers and tables: functions of the record, which know no engine and no scenario."""
